"""llm-d's token-aware routing: sticky until saturated, then the least uncached work. Knows matches and uncached tokens
in flight; nothing of decoding."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from router.core import Candidate, Demand
from router.routing.policy import Unit

MIN_MATCHED_SHARE = 0.80
MAX_GAP_S = 18.0


@dataclass(frozen=True, slots=True)
class StickyUntilSaturated:
    """Keeps the replicas that hold at least 80 % of the prompt; all, where there are none, or where the least uncached
    tokens in flight of those exceed the least of the others by what a replica computes in 18 s at its peak.

    `peak_tokens_per_s` None takes the speed learned of each replica's prefills, of the slowest candidate.
    """

    peak_tokens_per_s: float | None = None

    def keep(self, demand: Demand, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        least = MIN_MATCHED_SHARE * demand.prompt.num_tokens
        sticky = [each for each in candidates if each.matched_tokens >= least]
        others = [each for each in candidates if each.matched_tokens < least]
        if not sticky or not others:
            return candidates
        gap = min(map(uncached_in_flight, sticky)) - min(map(uncached_in_flight, others))
        peak = self.peak_tokens_per_s or min(each.replica.prefill_tokens_per_s for each in candidates)
        return candidates if gap > peak * MAX_GAP_S else sticky


@dataclass(frozen=True, slots=True)
class UncachedTokens:
    """Work in tokens: uncached prompt tokens in flight there without a first token + our own uncached ones."""

    unit: ClassVar[Unit] = Unit.WORK

    def score(self, demand: Demand, candidates: Sequence[Candidate]) -> list[float]:
        num_tokens = demand.prompt.num_tokens
        return [float(uncached_in_flight(each) + num_tokens - each.matched_tokens) for each in candidates]


def uncached_in_flight(candidate: Candidate) -> int:
    replica = candidate.replica
    return replica.prefilling_tokens + replica.sibling_prefilling_tokens + replica.foreign_tokens
