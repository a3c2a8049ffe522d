"""Which of the scored candidates it is. Knows costs, and of a replica what breaks a tie; randomness comes from outside,
in the field `random`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import ClassVar

from router.core import Candidate, Demand, Replica
from router.routing.policy import Unit


@dataclass(eq=False, slots=True)
class Lowest:
    """The lowest cost; ties to fewer cached blocks, then the least recently used, then at random.

    Costs within `tie_s` seconds of the lowest are ties. None takes half of the smallest difference that is real: the
    prefill of one KV block at that replica, or the drag of one running request there, whichever is less. So idle
    replicas tie for a fresh conversation, and one cached block or one running request more decides.
    """

    random: Random
    tie_s: float | None = None
    unit: ClassVar[Unit] = Unit.SECONDS

    def __post_init__(self) -> None:
        if self.tie_s is not None and self.tie_s < 0.0:
            raise ValueError("tie_s must not be negative")

    def pick(self, demand: Demand, candidates: Sequence[Candidate], costs: Sequence[float]) -> int:
        lowest = min(costs)
        tie_s = self.tie_s
        if tie_s is None:
            tie_s = _half_step_s(demand, candidates[costs.index(lowest)].replica)
        limit = lowest + tie_s
        tied = [index for index, cost in enumerate(costs) if cost <= limit]
        return tied[0] if len(tied) == 1 else self._coldest(tied, candidates)

    def _coldest(self, tied: list[int], candidates: Sequence[Candidate]) -> int:
        ranks = [(candidates[index].cached_blocks, candidates[index].replica.last_used) for index in tied]
        coldest = min(ranks)
        if ranks.count(coldest) == 1:
            return tied[ranks.index(coldest)]
        return self.random.choice([index for index, rank in zip(tied, ranks, strict=True) if rank == coldest])


@dataclass(eq=False, slots=True)
class LowestRandomTies:
    """The lowest cost, in any unit; equal costs at random."""

    random: Random

    def pick(self, demand: Demand, candidates: Sequence[Candidate], costs: Sequence[float]) -> int:
        lowest = min(costs)
        return self.random.choice([index for index, cost in enumerate(costs) if cost == lowest])


@dataclass(eq=False, slots=True)
class RoundRobin:
    """The next replica by id after the last one chosen in the pool, so that the order survives replicas that come, go
    or are full for a while. Costs do not matter."""

    last_ids: dict[str, str] = field(default_factory=dict, init=False)

    def pick(self, demand: Demand, candidates: Sequence[Candidate], costs: Sequence[float]) -> int:
        last = self.last_ids.get(demand.pool.model, "")
        ids = [candidate.replica.id for candidate in candidates]
        chosen = min(range(len(ids)), key=lambda index: (ids[index] <= last, ids[index]))
        self.last_ids[demand.pool.model] = ids[chosen]
        return chosen


@dataclass(eq=False, slots=True)
class AtRandom:
    """Any candidate, all alike. Costs do not matter."""

    random: Random

    def pick(self, demand: Demand, candidates: Sequence[Candidate], costs: Sequence[float]) -> int:
        return self.random.randrange(len(candidates))


@dataclass(eq=False, slots=True)
class PowerOfTwo:
    """Of two different candidates drawn at random, the one with fewer requests in flight. Costs do not matter."""

    random: Random

    def pick(self, demand: Demand, candidates: Sequence[Candidate], costs: Sequence[float]) -> int:
        drawn = self.random.sample(range(len(candidates)), k=min(2, len(candidates)))
        return min(drawn, key=lambda index: candidates[index].replica.in_flight)


def _half_step_s(demand: Demand, replica: Replica) -> float:
    return 0.5 * min(demand.prompt.block_size / replica.prefill_tokens_per_s, replica.decode_drag_s)
