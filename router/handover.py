"""One request on two replicas, as far as leases go: both are taken with the decision, each is released once. Tells the
upstream what each of the two is sent, and the rooms how it went. Knows decisions, leases, bodies' handshakes and the
retry budget; knows no sockets and chooses nothing.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import msgspec

from router import headers
from router.choice import Handover
from router.core import Attempt, Decision, Demand, Lease, Outcome, Usage
from router.errors import UpstreamError, UpstreamStatus
from router.ports import Clock, PrefixIndex, Sink
from router.relay import Relay
from router.retries import RetryBudget
from router.routing.moving import Moving
from router.telemetry.metrics import Metrics
from router.upstream.handshakes import bootstrapped, first_body, new_room

TOGETHER = "sglang"
MOST_WORDS = 300
log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True, kw_only=True)
class Handovers:
    """`reserve` is the registry's. `failed(lease, now)` and `answered(lease, usage, now)` are told of the first one's
    end, to learn from it, as the journal tells of the second's; `pause(replica_id, now)` of who failed."""

    reserve: Callable[[Demand, Decision], Lease]
    index: PrefixIndex
    budget: RetryBudget
    clock: Clock
    moving: Moving
    pause: Callable[[str, float], None]
    metrics: Metrics
    failed: Callable[[Lease, float], None]
    answered: Callable[[Lease, Usage, float], None]
    forwards_credentials: bool = False
    _open: "dict[Lease, _Pair]" = field(default_factory=dict, init=False)

    def take(self, demand: Demand, decision: Decision) -> Lease:
        """What the placement reserves by. Both leases, where there are two, or none."""
        lease = self.reserve(demand, decision)
        if not isinstance(decision, Handover):
            return lease
        try:
            first = self.reserve(_first_demand(demand), decision.prefill)
        except BaseException as error:
            lease.abandon(error)
            raise
        # Of its replica it takes no prefill, as has been counted; of its tenant's share what the first computes.
        lease.decision = msgspec.structs.replace(decision, uncached_tokens=decision.prefill.uncached_tokens)
        self.index.insert(first.replica.id, demand.prompt.block_hashes)
        self._open[lease] = _Pair(self, lease, first)
        if not demand.request.is_stream:
            _teach_nothing(lease)
        lease.when_released(self._ended)
        return lease

    def plan_of(self, attempt: Attempt, sink: Sink) -> "_Pair | None":
        """How to send the request behind the sink; None where one replica does it."""
        lease = sink.lease if isinstance(sink, Relay) else None
        pair = self.pair_of(lease) if lease is not None else None
        if pair is not None:
            pair.prepare(attempt)
        return pair

    def pair_of(self, lease: Lease) -> "_Pair | None":
        """Of an open lease: None where one replica does it all."""
        return self._open.get(lease)

    def count(self, lease: Lease, first: Lease, outcome: str) -> None:
        self.metrics.handovers.add((first.replica.id, lease.replica.id, outcome))

    def _ended(self, lease: Lease) -> None:
        self._open.pop(lease).close()

    def __repr__(self) -> str:
        return f"<Handovers {len(self._open)} open>"


class _Pair:
    """`ports.HandoverPlan`: both leases of one request. Lives as long as the second, whose end ends both."""

    __slots__ = ("_handed_at", "_handovers", "_lease", "_prefill", "first", "is_together", "second")

    def __init__(self, handovers: Handovers, lease: Lease, prefill: Lease) -> None:
        self._handovers, self._lease, self._prefill = handovers, lease, prefill
        self.is_together = prefill.replica.engine == TOGETHER
        self._handed_at: float | None = None

    def prepare(self, attempt: Attempt) -> None:
        """By what a single replica would be sent."""
        spec = self._prefill.replica.spec
        if self.is_together:
            host = urlsplit(spec.url).hostname or ""
            body = bootstrapped(attempt.body, host, spec.bootstrap_port, new_room())
            self.second = msgspec.structs.replace(attempt, body=body)
        else:
            body, self.second = first_body(attempt.body), attempt
        sent = headers.to_replica(
            self._lease.demand.request.headers,
            spec.api_key,
            forwards_credentials=self._handovers.forwards_credentials,
        )
        self.first = msgspec.structs.replace(attempt, replica=self._prefill.replica, headers=sent, body=body)

    def begun(self, usage: Usage | None) -> None:
        owner, now = self._handovers, self._handovers.clock()
        self._handed_at = now
        self._prefill.start()
        self._prefill.output_tokens = 1
        self._end_first(Outcome.OK)
        if usage is not None:
            owner.answered(self._prefill, usage, now)

    def failed(self, error: UpstreamError) -> bool:
        owner = self._handovers
        # As seldom as its pauses let it be asked again.
        log.warning("%s computed no prompt for %s: %s", self._prefill.replica.id, self._lease.replica.id, _words(error))
        owner.pause(self._prefill.replica.id, owner.clock())
        self._end_first(Outcome.UPSTREAM_FAILED, error)
        decision = self._lease.decision
        may_do_both = not self.is_together and isinstance(decision, Handover) and owner.budget.spend()
        owner.count(self._lease, self._prefill, "alone" if may_do_both else "failed")
        if may_do_both and isinstance(decision, Handover):
            self._lease.decision = decision.alone
        return may_do_both

    def has_answered(self) -> bool:
        return self._lease.has_started

    def close(self) -> None:
        """The second has ended, in whatever way: a first that is still at it is of no use."""
        owner, lease, now = self._handovers, self._lease, self._handovers.clock()
        if self._prefill.outcome is None:
            self._end_first(Outcome.CLIENT_GONE)
            owner.count(lease, self._prefill, Outcome.CLIENT_GONE)
        decision = lease.decision
        if not isinstance(decision, Handover):
            return
        if lease.outcome is not Outcome.OK:
            # What did not come is not in its cache.
            lease.decision = msgspec.structs.replace(decision, matched_tokens=decision.alone.matched_tokens)
        if lease.outcome is Outcome.UPSTREAM_FAILED and self._handed_at is not None:
            owner.pause(lease.replica.id, now)
        if self._handed_at is not None:
            owner.count(lease, self._prefill, lease.outcome or Outcome.CLIENT_GONE)
            self._learn(decision, self._handed_at, now)

    def _learn(self, decision: Handover, handed_at: float, now: float) -> None:
        """What of the time to its first token was neither waiting nor its own step went into fetching."""
        lease = self._lease
        if lease.started_at is None or not lease.demand.request.is_stream or self.is_together:
            return
        step = lease.replica.step.decode_s(lease.replica.num_running, lease.replica.context_tokens)
        moving_s = lease.started_at - handed_at - decision.prefill_s - step
        self._handovers.moving.learn(lease.replica.id, decision.moved_tokens, max(0.0, moving_s), now)

    def _end_first(self, outcome: Outcome, error: BaseException | None = None) -> None:
        prefill, owner = self._prefill, self._handovers
        prefill.release(outcome, error)
        owner.metrics.attempts.add((prefill.replica.id, outcome))
        if outcome is not Outcome.OK:
            owner.failed(prefill, owner.clock())

    def __repr__(self) -> str:
        return f"<Pair {self._prefill!r}, {self._lease!r}>"


def _words(error: UpstreamError) -> str:
    """What is wrong, in the replica's own words where it has some."""
    return error.body.decode("utf-8", "replace")[:MOST_WORDS] if isinstance(error, UpstreamStatus) else error.message


def _first_demand(demand: Demand) -> Demand:
    """Its answer is one token, and comes with it: as good as a stream for knowing when the prompt was computed."""
    request = msgspec.structs.replace(demand.request, is_stream=True, max_tokens=1)
    return msgspec.structs.replace(demand, request=request)


def _teach_nothing(lease: Lease) -> None:
    """An answer in one piece does not say when its decoding began: its time is the first one's as well, and no measure
    of this replica's speed."""
    before = lease.on_released

    def released(lease: Lease) -> None:
        num_tokens, lease.output_tokens = lease.output_tokens, None
        before(lease)
        lease.output_tokens = num_tokens

    lease.on_released = released
