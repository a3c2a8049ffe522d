"""How many requests a replica has. Knows our own count; knows nothing of their size."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from router.core import Candidate, Demand
from router.routing.policy import Unit


@dataclass(frozen=True, slots=True)
class Requests:
    """Share 1 / (1 + requests in flight): an idle replica is 1, more requests are always less. In flight is our own
    count and never missing; what others send there is not in it."""

    unit: ClassVar[Unit] = Unit.SHARE

    def score(self, demand: Demand, candidates: Sequence[Candidate]) -> list[float]:
        return [1.0 / (1 + candidate.replica.in_flight) for candidate in candidates]
