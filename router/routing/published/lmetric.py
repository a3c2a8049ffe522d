"""LMetric (arXiv 2603.15202). Knows uncached tokens and counts of requests; has no constants."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from router.core import Candidate, Demand
from router.routing.policy import Unit


@dataclass(frozen=True, slots=True)
class NewTokensTimesBatch:
    """Work: our uncached tokens there x the requests that it would have, running and waiting, ours included."""

    unit: ClassVar[Unit] = Unit.WORK

    def score(self, demand: Demand, candidates: Sequence[Candidate]) -> list[float]:
        num_tokens = demand.prompt.num_tokens
        return [float((num_tokens - each.matched_tokens) * (each.replica.num_requests + 1)) for each in candidates]
