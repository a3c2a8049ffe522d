"""Which candidates may serve a demand at all. Knows one demand and its candidates; scores nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from router.core import Candidate, Demand


@dataclass(frozen=True, slots=True)
class NotTried:
    """Keeps replicas that have not failed this request: a retry goes elsewhere."""

    def keep(self, demand: Demand, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        if not demand.tried:
            return candidates
        return [each for each in candidates if each.replica.id not in demand.tried]


@dataclass(frozen=True, slots=True)
class HasRoom:
    """Keeps replicas with fewer than `max_in_flight` requests of this host's workers; the rest wait in our queue, where
    order holds."""

    max_in_flight: int

    def __post_init__(self) -> None:
        if self.max_in_flight < 1:
            raise ValueError("max_in_flight must be at least 1")

    def keep(self, demand: Demand, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        most = self.max_in_flight
        return [each for each in candidates if each.replica.in_flight + each.replica.sibling_in_flight < most]


@dataclass(frozen=True, slots=True)
class HasAdapter:
    """Keeps replicas that serve the adapter asked for; all, where none is asked for."""

    def keep(self, demand: Demand, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        if demand.adapter is None:
            return candidates
        return [each for each in candidates if demand.adapter in each.replica.adapters]
