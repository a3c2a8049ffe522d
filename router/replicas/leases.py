"""What an open lease counts, and how its end is judged. The one writer of in-flight counts; knows no I/O.

A lease counts from the choice until the body ends, not until headers arrive: the replica is busy until then.
"""

from collections.abc import Callable
from enum import Enum

import msgspec

from router.core import Decision, Demand, Lease, Outcome
from router.errors import PointsmanError, UpstreamStatus
from router.ports import Clock
from router.replicas.member import Member
from router.replicas.speeds import Mark


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


class Share(msgspec.Struct, eq=False):
    """One open lease's share in its member's counts. `mark` is where the sums of its replica stood at its first token,
    or when it came, if it is silent: its answer comes in one piece, and no byte of it says when the prompt was done. It
    is cold where its adapter has to be loaded first, and crowded out where that has to wait for a slot.

    `on_verdict` is told when the trial of a half-open breaker passes, and at the end of each lease.
    """

    member: Member
    clock: Clock
    on_verdict: Callable[["Share", Verdict], None]
    tokens: int
    prefill_s: float
    is_trial: bool
    is_silent: bool
    is_cold: bool = False
    is_crowded_out: bool = False
    mark: Mark | None = None

    def start(self, lease: Lease) -> None:
        """The first content byte: its prompt is computed, and a trial has shown enough."""
        now, replica, num_tokens = self.clock(), self.member.replica, lease.demand.prompt.num_tokens
        lease.started_at = now
        if not self.is_silent:
            sent_at = lease.taken_at + replica.round_trip_s  # the way there and back is no work of the replica's
            self.mark = self.member.speeds.began(
                now, sent_at, self.tokens, num_tokens, replica.num_running, replica.context_tokens, self.is_cold
            )
            if self.is_cold and not self.is_crowded_out:
                expected_s = lease.decision.expected_wait_s + lease.decision.prefill_s + replica.step.base_s
                self.member.residency.learn(now - sent_at - expected_s)
                replica.adapter_load_s = self.member.residency.load_s
            replica.context_tokens += num_tokens
            self.member.take_in_speeds()
        self._leave_prefill(now)
        if replica.prefilling:
            # A queue got shorter: who waits because all were too deep may have a place now.
            self.on_verdict(self, Verdict.NOTHING)
        if self.is_trial:
            self.member.breaker.succeed(is_trial=True)
            self.on_verdict(self, Verdict.SUCCESS)
            self.is_trial = False

    def release(self, lease: Lease) -> None:
        now, replica = self.clock(), self.member.replica
        lease.ended_at = now
        if self.mark is not None:
            num_output = lease.output_tokens if lease.outcome is Outcome.OK else None
            num_tokens = lease.demand.prompt.num_tokens
            prefilled = (self.tokens, num_tokens) if self.is_silent else None
            running = (replica.num_running, replica.context_tokens)
            self.member.speeds.ended(self.mark, now, num_output, *running, prefilled)
            replica.context_tokens -= num_tokens
            self.member.take_in_speeds()
        holdings = self.member.holdings
        holdings.let_go(lease.demand.prompt)
        replica.held_tokens = holdings.num_tokens
        if lease.demand.adapter is not None:
            self.member.residency.leave(lease.demand.adapter)
            replica.num_free_adapter_slots = self.member.residency.num_free
        replica.in_flight -= 1
        replica.awaited_tokens = replica.awaited_tokens - lease.decision.output_tokens if replica.in_flight else 0.0
        if not lease.has_started:
            self._leave_prefill(now)
        elif self.member.publish is not None:
            self.member.publish()
        verdict = judge(lease.outcome, lease.error)
        self._tell_breaker(verdict, lease.error)
        self.on_verdict(self, verdict)

    def _leave_prefill(self, now: float) -> None:
        replica = self.member.replica
        replica.prefilling -= 1
        replica.prefilling_tokens -= self.tokens
        if self.is_silent:
            replica.silent -= 1
        else:
            replica.prefilling_s = max(0.0, replica.prefilling_s - self.prefill_s) if replica.prefilling else 0.0
            # Prompts are computed in their order: what is queued now begins now.
            replica.prefilled_at = now + replica.prefilling_s
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
        prefill_s=decision.prefill_s,
        is_trial=member.breaker.send(now),
        is_silent=not demand.request.is_stream,
    )
    if demand.adapter is not None:
        share.is_cold = not member.residency.use(demand.adapter, now)
        replica.num_free_adapter_slots = member.residency.num_free
        share.is_crowded_out = share.is_cold and replica.num_free_adapter_slots < 0
    if share.is_silent:
        share.mark = member.speeds.mark(now, replica.num_running, replica.context_tokens)
        replica.context_tokens += demand.prompt.num_tokens
        replica.silent += 1
    else:
        replica.prefilling_s += share.prefill_s
    replica.in_flight += 1
    member.holdings.hold(demand.prompt)
    replica.held_tokens = member.holdings.num_tokens
    replica.awaited_tokens += decision.output_tokens
    replica.prefilling += 1
    replica.prefilling_tokens += share.tokens
    replica.prefilled_at = max(replica.prefilled_at, now) + share.prefill_s
    replica.last_used = now
    if member.publish is not None:
        member.publish()
    return Lease(demand, decision, now, on_started=share.start, on_released=share.release)
