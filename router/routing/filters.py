"""Which candidates may serve a demand at all. Knows one demand and one candidate at a time; scores nothing."""

from dataclasses import dataclass

from router.core import Candidate, Demand


@dataclass(frozen=True, slots=True)
class NotTried:
    """Keeps replicas that have not failed this request: a retry goes elsewhere."""

    def keep(self, demand: Demand, candidate: Candidate) -> bool:
        return candidate.replica.id not in demand.tried


@dataclass(frozen=True, slots=True)
class HasRoom:
    """Keeps replicas with fewer than `max_in_flight` of our requests; the rest wait in our queue, where order holds."""

    max_in_flight: int

    def __post_init__(self) -> None:
        if self.max_in_flight < 1:
            raise ValueError("max_in_flight must be at least 1")

    def keep(self, demand: Demand, candidate: Candidate) -> bool:
        return candidate.replica.in_flight < self.max_in_flight


@dataclass(frozen=True, slots=True)
class HasAdapter:
    """Keeps replicas that serve the adapter asked for; all, where none is asked for."""

    def keep(self, demand: Demand, candidate: Candidate) -> bool:
        return demand.adapter is None or demand.adapter in candidate.replica.adapters
