"""vLLM's balancer of data-parallel ranks. Knows the last report and what we sent since."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from router.core import Candidate, Demand, Lease, Load
from router.routing.policy import Unit

WAITING_WEIGHT = 4


@dataclass(eq=False, slots=True)
class WaitingAndRunning:
    """Work: 4 x (requests waiting at the last report + those we sent since) + requests running. No report -> what we
    have open there counts as running."""

    unit: ClassVar[Unit] = Unit.WORK
    _sent: dict[str, tuple[Load | None, int]] = field(default_factory=dict, init=False)

    def score(self, demand: Demand, candidates: Sequence[Candidate]) -> list[float]:
        return [self._cost(each) for each in candidates]

    def placed(self, lease: Lease) -> None:
        replica = lease.replica
        self._sent[replica.id] = (replica.load, self._num_sent(replica.id, replica.load) + 1)

    def _num_sent(self, replica_id: str, load: Load | None) -> int:
        """Since that report came."""
        seen, count = self._sent.get(replica_id, (None, 0))
        return count if seen is load else 0

    def _cost(self, candidate: Candidate) -> float:
        replica = candidate.replica
        if replica.load is None:
            return float(replica.in_flight)
        num_waiting = replica.load.waiting + self._num_sent(replica.id, replica.load)
        return float(WAITING_WEIGHT * num_waiting + replica.load.running)
