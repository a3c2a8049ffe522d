import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path
from random import Random

import pytest

import router
from router.choice import View, Weighed
from router.core import Decision, Demand, Lease, Outcome, Pool, Prompt, Replica
from router.placement import Placement
from router.replicas.breaker import Breaker
from router.replicas.leases import take
from router.replicas.member import Member
from router.routing.presets import open_parts, preset
from tests.router.nouns import FakeClock, make_demand, make_prompt, make_replica


@dataclass(eq=False)
class FakeIndex:
    """The hashes each replica was sent, without eviction."""

    held: dict[str, list[int]] = field(default_factory=dict)

    def match(self, block_hashes: Sequence[int]) -> Mapping[str, int]:
        return {name: n for name, held in self.held.items() if (n := _leading(block_hashes, held))}

    def insert(self, replica_id: str, block_hashes: Sequence[int]) -> None:
        held = self.held.setdefault(replica_id, [])
        held.extend(each for each in block_hashes if each not in held)

    def remove(self, replica_id: str) -> None:
        self.held.pop(replica_id, None)

    def num_blocks(self, replica_id: str) -> int:
        return len(self.held.get(replica_id, ()))


@dataclass(eq=False)
class FakeReplicas:
    """A registry without health: its replicas are all there."""

    replicas: list[Replica]
    clock: FakeClock
    asked: list[tuple[Pool, float]] = field(default_factory=list)
    members: dict[str, Member] = field(default_factory=dict)

    def available(self, pool: Pool, now: float) -> Sequence[Replica]:
        self.asked.append((pool, now))
        return self.replicas

    def any_ready(self, pool: Pool, tried: frozenset[str]) -> bool:
        return any(replica.id not in tried for replica in self.replicas)

    def reserve(self, demand: Demand, decision: Decision) -> Lease:
        member = self.members.setdefault(decision.replica.id, Member(decision.replica, Breaker()))
        return take(demand, decision, member, self.clock, lambda share, verdict: None)


@dataclass(eq=False)
class Fleet:
    """A placement over fakes with a real policy."""

    num_replicas: int = 2
    max_in_flight: int = 8
    policy_name: str = "pointsman"
    clock: FakeClock = field(default_factory=FakeClock)
    index: FakeIndex = field(default_factory=FakeIndex)

    def __post_init__(self) -> None:
        names = [chr(ord("a") + n) for n in range(self.num_replicas)]
        self.replicas = FakeReplicas([make_replica(name) for name in names], self.clock)
        self.policy = preset(self.policy_name, open_parts(), Random(7), self.max_in_flight)
        self.placement = Placement(
            self.replicas.available,
            self.replicas.any_ready,
            self.replicas.reserve,
            self.index,
            self.policy,
            self.clock,
        )

    def place(self, demand: Demand) -> Lease:
        self.clock.now += 1.0
        lease = self.placement.place(demand)
        assert lease is not None
        return lease

    def serve(self, demand: Demand) -> str:
        """Place and finish; the id of the replica."""
        lease = self.place(demand)
        lease.start()
        lease.release(Outcome.OK)
        return lease.replica.id


def chat(number: int, num_tokens: int) -> Demand:
    """A turn of one conversation: later turns are longer. All chats share one template block of 20 tokens."""
    own = make_prompt(num_tokens, 20, first_hash=1000 * number)
    hashes = (7, *own.block_hashes[1:])
    return make_demand(f"chat{number}", prompt=type(own)(num_tokens, hashes, 16, 20))


def test_a_second_turn_goes_where_the_first_went() -> None:
    fleet = Fleet(num_replicas=4)
    firsts = {number: fleet.serve(chat(number, 40)) for number in range(1, 30)}
    assert len(set(firsts.values())) == 4
    assert {number: fleet.serve(chat(number, 90)) for number in firsts} == firsts


def test_a_second_turn_leaves_when_the_wait_exceeds_what_the_cache_saves() -> None:
    fleet = Fleet()
    owner = fleet.serve(chat(1, 640))
    replica = next(each for each in fleet.replicas.replicas if each.id == owner)
    replica.foreign_tokens = 500
    assert fleet.serve(chat(1, 700)) == owner, "624 tokens saved are more than 500 tokens queued"
    fleet = Fleet()
    owner = fleet.serve(chat(1, 640))
    replica = next(each for each in fleet.replicas.replicas if each.id == owner)
    replica.foreign_tokens = 2000
    assert fleet.serve(chat(1, 700)) != owner


def test_fresh_conversations_alternate_between_idle_replicas() -> None:
    fleet = Fleet()
    served = [fleet.serve(chat(number, 48)) for number in range(1, 21)]
    assert Counter(served) == {"a": 10, "b": 10}


def test_a_dead_owners_load_spreads_over_all() -> None:
    """Pitfall: the owner of a hot prefix dies and all its traffic lands on one survivor."""
    fleet = Fleet(num_replicas=9, max_in_flight=1000)
    owner = Counter(serve_in_time(fleet, range(400))).most_common(1)[0][0]
    fleet.replicas.replicas = [each for each in fleet.replicas.replicas if each.id != owner]
    fleet.index.remove(owner)
    counts = Counter(serve_in_time(fleet, range(1000, 7000)))
    assert sum(counts.values()) == 6000
    assert max(counts.values()) <= 1.3 * 6000 / 8


def serve_in_time(fleet: Fleet, numbers: range) -> Iterator[str]:
    """Hot questions at nine tenths of what eight replicas can do, each computed in its turn. Who gets them."""
    due: list[tuple[float, int, Lease]] = []
    free_at: dict[str, float] = {}
    for number in numbers:
        fleet.clock.now += 0.02 / 7.2
        while due and due[0][0] <= fleet.clock.now:
            lease = heappop(due)[2]
            lease.start()
            lease.release(Outcome.OK)
        placed = fleet.placement.place(hot(number))
        assert placed is not None
        id, now = placed.replica.id, fleet.clock.now
        free_at[id] = max(free_at.get(id, now), now) + placed.decision.uncached_tokens / 2000
        heappush(due, (free_at[id], number, placed))
        yield id


def test_a_hot_prefix_spreads_when_its_owners_wait_exceeds_the_price_of_another_copy() -> None:
    fleet = Fleet(num_replicas=4, max_in_flight=1000)
    owner = fleet.serve(hot(0))
    served = [fleet.place(hot(number)).replica.id for number in range(1, 400)]
    assert served[:3] == [owner] * 3, "a copy is not worth it for a few"
    assert set(served) == set("abcd")


def hot(number: int) -> Demand:
    """One of many short questions behind the same 1,600 tokens."""
    hashes = (*range(100), 10_000 + number)
    return make_demand(f"hot{number}", prompt=Prompt(1640, hashes, 16), is_stream=True)


def test_the_next_decision_sees_the_lease_and_the_blocks_of_the_last() -> None:
    fleet = Fleet()
    first, second = fleet.place(chat(1, 64)), fleet.place(chat(2, 64))
    assert first.replica is not second.replica
    assert (first.replica.in_flight, first.replica.prefilling_tokens) == (1, 64)
    assert fleet.index.num_blocks(first.replica.id) == 4
    assert fleet.place(chat(1, 80)).decision.matched_tokens == 64


def test_at_least_one_token_remains_to_compute() -> None:
    fleet = Fleet(num_replicas=1)
    fleet.serve(make_demand(prompt=make_prompt(64)))
    decision = fleet.place(make_demand(prompt=make_prompt(64))).decision
    assert (decision.matched_tokens, decision.uncached_tokens) == (63, 1)


def test_an_empty_prompt_has_nothing_matched() -> None:
    assert Fleet().place(make_demand(prompt=make_prompt(0))).decision.matched_tokens == 0


def test_no_replica_or_no_candidate_gives_none_and_counts_nothing() -> None:
    full = Fleet(max_in_flight=1)
    leases = [full.place(make_demand()), full.place(make_demand())]
    assert full.placement.place(make_demand()) is None
    assert sum(replica.in_flight for replica in full.replicas.replicas) == len(leases)
    assert Fleet(num_replicas=0).placement.place(make_demand()) is None


def test_a_policy_that_fails_counts_nothing() -> None:
    fleet = Fleet()

    class Broken:
        def about(self) -> Mapping[str, object]:
            return {}

        def explain(self, demand: Demand, view: View) -> Sequence[Weighed]:
            return ()

        def placed(self, lease: Lease) -> None:
            raise AssertionError("nothing was decided")

        def decide(self, demand: Demand, view: View) -> Decision | None:
            raise RuntimeError("plug-in")

    fleet.placement.policy = Broken()
    with pytest.raises(RuntimeError):
        fleet.placement.place(make_demand())
    assert sum(replica.in_flight for replica in fleet.replicas.replicas) == 0


def test_ready_is_asked_for_without_those_tried() -> None:
    fleet = Fleet()
    assert fleet.placement.has_ready(make_demand(tried=frozenset({"a"})))
    assert not fleet.placement.has_ready(make_demand(tried=frozenset({"a", "b"})))


def test_availability_is_asked_for_the_pool_at_the_clocks_time() -> None:
    fleet, pool = Fleet(), Pool("other")
    fleet.place(make_demand(pool=pool))
    assert fleet.replicas.asked == [(pool, 101.0)]


def test_in_flight_is_the_number_of_open_leases_whatever_happens() -> None:
    random, fleet = Random(3), Fleet(num_replicas=3, max_in_flight=5)
    open_leases: list[Lease] = []
    for step in range(2000):
        if random.random() < 0.55:
            fleet.clock.now += 0.1
            tried = frozenset(random.sample(["a", "b", "c"], k=random.randrange(4)))
            demand = make_demand(
                str(step), prompt=chat(random.randrange(9), 16 * random.randrange(12)).prompt, tried=tried
            )
            lease = fleet.placement.place(demand)
            if lease is not None:
                assert lease.replica.id not in tried
                open_leases.append(lease)
        elif open_leases:
            lease = open_leases.pop(random.randrange(len(open_leases)))
            if random.random() < 0.5:
                lease.start()
            lease.release(random.choice(list(Outcome)))
        counts = Counter(lease.replica.id for lease in open_leases)
        assert {each.id: each.in_flight for each in fleet.replicas.replicas} == {n: counts[n] for n in "abc"}
        assert max(counts.values(), default=0) <= 5
    for lease in open_leases:
        lease.release(Outcome.CLIENT_GONE)
    assert all((r.in_flight, r.prefilling, r.prefilling_tokens) == (0, 0, 0) for r in fleet.replicas.replicas)


def test_nobody_else_reserves() -> None:
    """A path that reserved on its own would be a path that may forget to."""
    root = Path(router.__file__).parent
    callers = {(path.name, name) for path in root.rglob("*.py") for name in _callers(path, "reserve")}
    # The second is what the first is given where several processes share the replicas, the third where they have roles.
    assert callers == {("placement.py", "place"), ("app.py", "_reserve_and_tell"), ("handover.py", "take")}


def _callers(path: Path, method: str) -> set[str]:
    """Names of the functions in a file that call this method of anything."""
    tree = ast.walk(ast.parse(path.read_text()))
    functions = [node for node in tree if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {function.name for function in functions if any(_is_call(node, method) for node in ast.walk(function))}


def _is_call(node: ast.AST, method: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == method


def _leading(wanted: Sequence[int], held: Sequence[int]) -> int:
    count = 0
    while count < len(wanted) and wanted[count] in held:
        count += 1
    return count
