"""The wait at a replica. Knows its expected wait; knows nothing of the prompt."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from router.core import Candidate, Demand
from router.routing.policy import Unit


@dataclass(frozen=True, slots=True)
class Wait:
    """Seconds until a replica could start us: prompt tokens queued there / its prefill speed + the drag of those
    running. No load report yet -> what we ourselves sent it is all there is."""

    unit: ClassVar[Unit] = Unit.SECONDS

    def score(self, demand: Demand, candidates: Sequence[Candidate]) -> list[float]:
        return [candidate.replica.expected_wait_s for candidate in candidates]
