"""How much of the prompt a replica holds. Knows what the prefix index says; nothing of load."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from router.core import Candidate, Demand
from router.routing.policy import Unit


@dataclass(frozen=True, slots=True)
class MatchedShare:
    """Share matched tokens / prompt tokens, by the prefix index. Nothing known of a replica -> 0."""

    unit: ClassVar[Unit] = Unit.SHARE

    def score(self, demand: Demand, candidates: Sequence[Candidate]) -> list[float]:
        num_tokens = max(1, demand.prompt.num_tokens)
        return [each.matched_tokens / num_tokens for each in candidates]
