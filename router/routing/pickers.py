"""Which of the scored candidates it is. Knows costs, and of a replica what breaks a tie; randomness comes from outside,
in the field `random`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from router.core import Candidate, Demand, Lease


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
        return min(range(len(ids)), key=lambda index: (ids[index] <= last, ids[index]))

    def placed(self, lease: Lease) -> None:
        self.last_ids[lease.demand.pool.model] = lease.replica.id


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
