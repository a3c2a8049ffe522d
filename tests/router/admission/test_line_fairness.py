"""How far apart two tenants who both wait can get, whatever happens between; and who bears a shortage that is new."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from router.admission.flows import Flow
from router.admission.line import Line
from router.admission.waiters import Waiter
from router.core import Standing
from tests.router.nouns import make_demand

DEAREST, MOST_OPEN, GRACE = 10.0, 3, 60.0
STANDINGS = {name: Standing(tenant=name, weight=weight) for name, weight in (("a", 1.0), ("b", 1.0), ("c", 2.0))}
Gains = dict[tuple[str, str], list[float]]


@dataclass(eq=False)
class Pool:
    """A line whose requests are charged, served and settled; `served` is by tenant, in tokens per weight. `gains` are
    of each pair by how much one was served more, for as long as both have waited."""

    grace: float
    line: Line[None] = field(default_factory=Line)
    served: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STANDINGS, 0.0))
    open_charges: list[tuple[Flow, float, float]] = field(default_factory=list)
    gains: Gains = field(default_factory=dict)
    num_joined: int = 0
    order: list[str] = field(default_factory=list)

    def join(self, tenant: str, id: str | None = None) -> None:
        if not len(self.line):
            self.line.flows.begin_shortage(self.grace)
        self.num_joined += 1
        number = self.num_joined
        demand = make_demand(id or str(number), arrived=float(number), standing=STANDINGS[tenant])
        self.line.join(demand, None, float(number), number)

    def serve(self, expected: float) -> None:
        """One place for whose turn it is."""
        places = [expected]

        def take(waiter: Waiter[None]) -> bool:
            if not places:
                return False
            flow, tokens = self.line.flows.get(waiter.standing), places.pop()
            self.open_charges.append((flow, tokens, self.line.serve(flow, waiter.band, tokens, 0.0)))
            self.order.append(waiter.demand.request.id)
            return True

        self.line.advance(take)

    def settle(self, actual: float) -> None:
        """The request that has been open longest took so many tokens."""
        if self.open_charges:
            flow, charged, rate = self.open_charges.pop(0)
            self.line.settle(flow, actual, charged, rate)
            self.served[flow.tenant] += actual / flow.weight

    def note(self) -> None:
        waiting = {name for name in STANDINGS if self.line.flows.get(STANDINGS[name]).num_waiting}
        for pair in combinations(STANDINGS, 2):
            if waiting.issuperset(pair):
                self.gains.setdefault(pair, []).append(self.served[pair[0]] - self.served[pair[1]])
            else:
                self.gains.pop(pair, None)

    def gaps(self) -> Iterator[float]:
        return (max(gains) - min(gains) for gains in self.gains.values())


tokens = st.floats(0.5, DEAREST)
moves = st.one_of(
    st.tuples(st.just("join"), st.sampled_from("aaaabbc"), st.integers(1, 12)),
    st.tuples(st.just("serve"), tokens, st.integers(1, 12)),
    st.tuples(st.just("settle"), st.one_of(st.just(0.0), tokens), st.just(1)),
)


@settings(deadline=None, max_examples=150)
@given(st.lists(moves, min_size=20, max_size=120))
def test_tenants_that_both_wait_are_served_alike_but_for_the_bound(steps: list[tuple[str, str | float, int]]) -> None:
    pool = Pool(GRACE)
    for name, value, times in steps:
        for _ in range(times):
            if name == "join":
                pool.join(str(value))
            elif name == "settle" or len(pool.open_charges) >= MOST_OPEN:
                pool.settle(float(value))
            else:
                pool.serve(float(value))
            pool.note()
            assert max(pool.gaps(), default=0.0) <= GRACE + 2 * (DEAREST + MOST_OPEN * DEAREST)
            assert abs(pool.line.flows.open_tokens - sum(charged for _, charged, _ in pool.open_charges)) < 1e-6


def test_the_first_requests_of_a_shortage_go_as_they_came_and_then_tenants_take_turns() -> None:
    pool = Pool(grace=50.0)
    for number in range(20):
        pool.join("a", f"a{number}")
    for number in range(3):
        pool.join("b", f"b{number}")
    for _ in range(12):
        pool.serve(10.0)
    assert pool.order == [*(f"a{n}" for n in range(6)), "b0", "b1", "b2", "a6", "a7", "a8"]


def test_a_grace_is_given_once_in_a_shortage_and_not_to_each_who_comes_back() -> None:
    pool = Pool(grace=50.0)
    for number in range(20):
        pool.join("a", f"a{number}")
    for _ in range(8):
        pool.serve(10.0)
    pool.join("b", "first")
    pool.serve(10.0)
    pool.join("b", "second")
    pool.serve(10.0)
    pool.serve(10.0)
    assert pool.order[8:] == ["first", "a8", "second"]


def test_a_shortage_that_begins_anew_is_borne_by_all_again() -> None:
    pool = Pool(grace=30.0)
    for _ in range(2):
        pool.order.clear()
        for id in ("a0", "a1", "a2", "b0", "b1"):
            pool.join(id[0], id)
        for _ in range(5):
            pool.serve(10.0)
        assert pool.order == ["a0", "a1", "a2", "b0", "b1"]


def test_who_joins_with_an_earlier_due_passes_those_of_other_tenants_within_the_grace() -> None:
    pool = Pool(grace=50.0)
    pool.join("a", "late")
    pool.line.join(make_demand("b0", arrived=9.0, standing=STANDINGS["b"]), None, 0.0, 101)
    pool.line.join(make_demand("b1", arrived=0.0, deadline=1.0, standing=STANDINGS["b"]), None, 0.0, 102)
    for _ in range(3):
        pool.serve(1.0)
    assert pool.order == ["b1", "late", "b0"]
