"""AIBrix's prefix-cache routing. Knows matches and requests in flight."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean, pstdev

from router.core import Candidate, Demand


@dataclass(eq=False, slots=True)
class MatchWithinDeviation:
    """Largest - smallest requests in flight above `max_load_gap`: the fewest. Else of the replicas that hold anything,
    by share held (more first) then requests (fewer first), the first with at most the mean + `max_deviations` standard
    deviations of requests; where there is none, the fewest. Ties at random. Costs do not matter."""

    random: Random
    max_load_gap: int = 8
    max_deviations: float = 1.0

    def pick(self, demand: Demand, candidates: Sequence[Candidate], costs: Sequence[float]) -> int:
        loads = [each.replica.num_requests for each in candidates]
        if max(loads) - min(loads) > self.max_load_gap:
            return self._fewest(loads)
        most = fmean(loads) + self.max_deviations * pstdev(loads)
        ranked = sorted(
            (at for at, each in enumerate(candidates) if each.matched_tokens),
            key=lambda at: (-candidates[at].matched_tokens, loads[at]),
        )
        within = next((at for at in ranked if loads[at] <= most), None)
        return self._fewest(loads) if within is None else within

    def _fewest(self, loads: Sequence[int]) -> int:
        fewest = min(loads)
        return self.random.choice([at for at, load in enumerate(loads) if load == fewest])
