"""DualMap (ICLR'26): two hashes of the prompt's head give two candidates. Knows queued prefill times and matches."""

from collections.abc import Sequence
from dataclasses import dataclass

from router.core import Candidate, Demand
from router.routing.published.conductor import QueuedPrefill
from router.routing.ring import prefix_key, walk


@dataclass(frozen=True, slots=True)
class TwoHashes:
    """Of the two replicas that two hashes of the first `num_tokens` tokens lead to: the one that holds more, while its
    first token would come within `slo_s`; else the one whose first token comes first. Where that too is later than
    `slo_s`, the hot spot is left: the earliest first token of all. Costs do not matter."""

    num_tokens: int = 1024
    slo_s: float = 2.0

    def pick(self, demand: Demand, candidates: Sequence[Candidate], costs: Sequence[float]) -> int:
        first_token_s = QueuedPrefill().score(demand, candidates)
        places = {each.replica.id: at for at, each in enumerate(candidates)}
        first, second = (places[next(walk(list(places), prefix_key(demand, self.num_tokens, seed)))] for seed in (1, 2))
        holder = max((first, second), key=lambda at: (candidates[at].matched_tokens, -first_token_s[at]))
        if first_token_s[holder] <= self.slo_s:
            return holder
        sooner = min((first, second), key=first_token_s.__getitem__)
        if first_token_s[sooner] <= self.slo_s:
            return sooner
        return min(range(len(candidates)), key=first_token_s.__getitem__)
