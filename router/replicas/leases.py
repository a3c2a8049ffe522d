"""What an open lease counts, and how its end is judged. The one writer of in-flight counts; knows no I/O.

A lease counts from the choice until the body ends, not until headers arrive: the replica is busy until then.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from router.core import Decision, Demand, Lease, Outcome
from router.errors import PointsmanError, UpstreamStatus
from router.ports import Clock
from router.replicas.member import Member

MIN_SAMPLE_TOKENS = 64  # below, the time is mostly the network's and the scheduler's
SAMPLE_WEIGHT = 0.2
MAX_SAMPLE_RATIO = 4.0


class Verdict(Enum):
    """What the end of a request says of its replica."""

    SUCCESS = "it did its part"
    FAULT = "it is to blame"
    BACK_PRESSURE = "it has too much to do"
    NOTHING = "it tells nothing"


def judge(outcome: Outcome | None, error: BaseException | None) -> Verdict:
    """A client that leaves and a deadline that passes are never a replica's fault; a refusal (4xx) is its duty."""
    if outcome is Outcome.OK:
        return Verdict.SUCCESS
    if outcome in (Outcome.CLIENT_GONE, Outcome.EXPIRED):
        return Verdict.NOTHING
    if isinstance(error, UpstreamStatus) and error.is_backpressure:
        return Verdict.BACK_PRESSURE
    if isinstance(error, PointsmanError) and error.blames_replica:
        return Verdict.FAULT
    if isinstance(error, UpstreamStatus):
        return Verdict.SUCCESS
    return Verdict.NOTHING


@dataclass(eq=False, slots=True)
class Share:
    """One open lease's share in its member's counts. `tokens_ahead` were queued there when it came.

    `on_verdict` is told when the trial of a half-open breaker passes, and at the end of each lease.
    """

    member: Member
    clock: Clock
    on_verdict: Callable[["Share", Verdict], None]
    tokens: int
    tokens_ahead: int
    is_trial: bool

    def start(self, lease: Lease) -> None:
        """The first content byte: its prompt is computed, and a trial has shown enough."""
        self._leave_prefill()
        _learn_speed(self.member, self.tokens_ahead + self.tokens, self.clock() - lease.taken_at)
        if self.is_trial:
            self.member.breaker.succeed(is_trial=True)
            self.on_verdict(self, Verdict.SUCCESS)
            self.is_trial = False

    def release(self, lease: Lease) -> None:
        replica = self.member.replica
        replica.in_flight -= 1
        if lease.has_started:
            self._publish()
        else:
            self._leave_prefill()
        verdict = judge(lease.outcome, lease.error)
        self._tell_breaker(verdict, lease.error)
        self.on_verdict(self, verdict)

    def _leave_prefill(self) -> None:
        self.member.replica.prefilling -= 1
        self.member.replica.prefilling_tokens -= self.tokens
        self._publish()

    def _publish(self) -> None:
        if self.member.publish is not None:
            self.member.publish()

    def _tell_breaker(self, verdict: Verdict, error: BaseException | None) -> None:
        breaker = self.member.breaker
        if verdict is Verdict.SUCCESS:
            breaker.succeed(self.is_trial)
        elif verdict is Verdict.FAULT:
            breaker.fail(self.clock(), self.is_trial)
        elif verdict is Verdict.BACK_PRESSURE and isinstance(error, UpstreamStatus):
            breaker.push_back(self.clock(), self.is_trial, error.retry_after_s)
        else:
            breaker.abandon(self.is_trial)


def take(
    demand: Demand, decision: Decision, member: Member, clock: Clock, on_verdict: Callable[[Share, Verdict], None]
) -> Lease:
    """Count a request on the replica chosen for it, from this moment on."""
    now, replica = clock(), member.replica
    share = Share(
        member=member,
        clock=clock,
        on_verdict=on_verdict,
        tokens=decision.uncached_tokens,
        tokens_ahead=replica.prefilling_tokens + replica.sibling_prefilling_tokens + replica.foreign_tokens,
        is_trial=member.breaker.send(now),
    )
    replica.in_flight += 1
    replica.prefilling += 1
    replica.prefilling_tokens += share.tokens
    replica.last_used = now
    if member.publish is not None:
        member.publish()
    return Lease(demand, decision, now, on_started=share.start, on_released=share.release)


def _learn_speed(member: Member, num_tokens: int, seconds: float) -> None:
    """A moving average of tokens computed until the first token, per second; no sample moves it far."""
    if num_tokens < MIN_SAMPLE_TOKENS or seconds <= 0:
        return
    speed = member.replica.prefill_tokens_per_s
    sample = min(max(num_tokens / seconds, speed / MAX_SAMPLE_RATIO), speed * MAX_SAMPLE_RATIO)
    member.replica.prefill_tokens_per_s = speed + SAMPLE_WEIGHT * (sample - speed)
