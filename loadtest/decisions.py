"""`python -m loadtest.micro decision`: what one placement costs in CPU time, from the demand to the lease.

Steps the router's own placement, policy, index and counts, as a router does between a prompt's hashes and its upstream.
Knows no sockets, and nothing of where prompts come from.
"""

import gc
import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from time import thread_time_ns

from rich.console import Console
from rich.table import Table

from router.core import Decision, Demand, Lease, Outcome, Pool, Prompt, Replica, ReplicaState, Request, Surface
from router.placement import Placement
from router.prefix.index import BlockIndex
from router.replicas.breaker import Breaker
from router.replicas.leases import take
from router.replicas.member import Member
from router.replicas.speeds import LeastSquares, Speeds
from router.routing.presets import open_parts, preset
from router.spec import ReplicaSpec
from router.steps import StepModel

BLOCK_TOKENS = 16
# Blocks that the index holds before anything is measured.
NUM_BLOCKS = 1_000_000
# What a turn adds to a conversation that is there.
TURN_BLOCKS = 12
# Blocks that all conversations begin with.
SHARED_BLOCKS = 32
OPEN_PER_REPLICA = 6
NUM_DECISIONS = 4000
# Of a 70B model on four H100s.
STEP = StepModel(base_s=0.0167, token_s=7.25e-5, attention_s=1e-9, sequence_s=4e-5, context_s=4.76e-8)


@dataclass(frozen=True, slots=True)
class Case:
    """Turns of conversations of at least so many tokens, placed by a policy on so many replicas."""

    name: str
    policy: str
    num_replicas: int
    num_tokens: int
    num_decisions: int = NUM_DECISIONS


CASES = (
    Case("10,000 tokens, 4 replicas", "pointsman", 4, 10_000),
    Case("10,000 tokens, 64 replicas", "pointsman", 64, 10_000),
    Case("10,000 tokens, 1,000 replicas", "pointsman", 1000, 10_000),
    Case("128,000 tokens, 64 replicas", "pointsman", 64, 128_000, 1000),
    Case("the same by round-robin, 64 replicas", "round-robin", 64, 10_000),
)


@dataclass(frozen=True, slots=True)
class Cost:
    p50_us: float
    p99_us: float


@dataclass(eq=False, slots=True)
class Fleet:
    """Ready replicas with the counts, the index and the policy of a router."""

    case: Case
    now: float = 1000.0
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    members: dict[str, Member] = field(init=False)
    placement: Placement = field(init=False)
    pool: Pool = field(default_factory=lambda: Pool("m", BLOCK_TOKENS))
    open_leases: deque[Lease] = field(default_factory=deque)

    def __post_init__(self) -> None:
        replicas = [_replica(number) for number in range(self.case.num_replicas)]
        self.members = {replica.id: _member(replica) for replica in replicas}
        available: Sequence[Replica] = tuple(replicas)
        index = BlockIndex(2**40)
        self.placement = Placement(
            available=lambda pool, now: available,
            any_ready=lambda pool, tried: True,
            reserve=self._reserve,
            index=index,
            policy=preset(self.case.policy, open_parts(), random.Random(2), max_in_flight=256),
            clock=lambda: self.now,
            on_device=index.match_device,
        )

    def times_ns(self) -> list[int]:
        """Of one placement each, while older requests go on and end."""
        talks = list(self._talks())
        found = []
        for number in range(self.case.num_decisions + 500):
            demand = self._turn(number, talks)
            start = thread_time_ns()
            lease = self.placement.place(demand)
            found.append(thread_time_ns() - start)
            assert lease is not None
            self._go_on(lease)
        return found[500:]

    def _reserve(self, demand: Demand, decision: Decision) -> Lease:
        return take(demand, decision, self.members[decision.replica.id], lambda: self.now, lambda share, verdict: None)

    def _talks(self) -> Iterator[list[int]]:
        """Conversations that somebody holds, until the index is full."""
        index, ids = self.placement.index, list(self.members)
        per_talk = self.case.num_tokens // BLOCK_TOKENS - TURN_BLOCKS
        shared = [self.rng.getrandbits(63) for _ in range(SHARED_BLOCKS)]
        for _ in range(NUM_BLOCKS // (per_talk - SHARED_BLOCKS)):
            talk = shared + [self.rng.getrandbits(63) for _ in range(per_talk - SHARED_BLOCKS)]
            index.insert(self.rng.choice(ids), talk)
            yield talk

    def _turn(self, number: int, talks: list[list[int]]) -> Demand:
        talk = self.rng.choice(talks)
        talk.extend([self.rng.getrandbits(63) for _ in range(TURN_BLOCKS)])
        hashes = talk[:]
        request = Request(str(number), Surface.CHAT, "m", b"", self.now, self.now + 600.0, is_stream=True)
        return Demand(request, self.pool, Prompt(len(hashes) * BLOCK_TOKENS + 7, hashes, BLOCK_TOKENS))

    def _go_on(self, lease: Lease) -> None:
        """Time passes: an earlier one gets its first token, the oldest ends."""
        self.now += 0.5 / self.case.num_replicas
        self.open_leases.append(lease)
        num_prefilling = max(1, self.case.num_replicas // 8)
        if len(self.open_leases) > num_prefilling:
            self.open_leases[-1 - num_prefilling].start()
        if len(self.open_leases) > OPEN_PER_REPLICA * self.case.num_replicas:
            oldest = self.open_leases.popleft()
            oldest.output_tokens = 200
            oldest.release(Outcome.OK)


def measure_decisions() -> dict[str, Cost]:
    """Costs by case."""
    return {case.name: _cost(case) for case in CASES}


def print_decisions(costs: dict[str, Cost]) -> None:
    table = Table(
        title=f"decision: microseconds of CPU a placement, {NUM_BLOCKS:,} blocks in the index", title_justify="left"
    )
    for header in ("turn of a conversation", "p50", "p99"):
        table.add_column(header, justify="left" if header.startswith("turn") else "right")
    for case, cost in costs.items():
        table.add_row(case, f"{cost.p50_us:.1f}", f"{cost.p99_us:.1f}")
    Console().print(table)


def _cost(case: Case) -> Cost:
    fleet = Fleet(case)
    gc.collect()
    gc.freeze()
    gc.disable()  # In a router it is tuned to run seldom.
    try:
        times = sorted(fleet.times_ns())
    finally:
        gc.enable()
        gc.unfreeze()
    return Cost(times[len(times) // 2] / 1e3, times[len(times) * 99 // 100] / 1e3)


def _member(replica: Replica) -> Member:
    return Member(replica, Breaker(), speeds=Speeds(LeastSquares(STEP)))


def _replica(number: int) -> Replica:
    replica = Replica(ReplicaSpec(f"http://10.0.{number // 250}.{number % 250}:8000"), state=ReplicaState.READY)
    replica.kv_capacity_tokens, replica.step = 500_000, STEP
    return replica
