"""Consistent hashing of the prompt's head with a bound on load, as SMG's prefix_hash. Knows requests in flight."""

from collections.abc import Sequence
from dataclasses import dataclass

from router.core import Candidate, Demand
from router.routing.ring import prefix_key, walk


@dataclass(frozen=True, slots=True)
class BoundedRing:
    """The replica that the first `num_tokens` tokens lead to on the ring, if it has at most `max_load_ratio` x the mean
    of requests that it would make; else the one with the fewest, ties in the ring's order. Costs do not matter."""

    num_tokens: int = 256
    max_load_ratio: float = 1.25

    def __post_init__(self) -> None:
        if self.max_load_ratio < 1.0:
            raise ValueError("max_load_ratio must be at least 1")

    def pick(self, demand: Demand, candidates: Sequence[Candidate], costs: Sequence[float]) -> int:
        loads = [each.replica.num_requests for each in candidates]
        places = {each.replica.id: at for at, each in enumerate(candidates)}
        order = [places[id] for id in walk(list(places), prefix_key(demand, self.num_tokens))]
        if loads[order[0]] <= self.max_load_ratio * (sum(loads) + 1) / len(loads):
            return order[0]
        return min(order, key=loads.__getitem__)
