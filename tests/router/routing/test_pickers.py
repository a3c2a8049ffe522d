from collections import Counter
from collections.abc import Sequence
from random import Random

from router.core import Candidate, Decision, Demand, Lease, Pool
from router.routing.pickers import AtRandom, LowestRandomTies, PowerOfTwo, RoundRobin
from tests.router.nouns import make_candidate, make_demand

DEMAND = make_demand()


def fleet(*cached: int, **fields: object) -> list[Candidate]:
    return [make_candidate(chr(ord("a") + n), 0, blocks, **fields) for n, blocks in enumerate(cached)]


def test_equal_costs_at_random_and_nothing_else() -> None:
    picker = LowestRandomTies(Random(1))
    counts = Counter(picker.pick(DEMAND, fleet(9, 0, 5), [0.5, 0.5, 0.6]) for _ in range(2000))
    assert set(counts) == {0, 1}
    assert min(counts.values()) > 850


def go_round(picker: RoundRobin, names: Sequence[str], demand: Demand = DEMAND) -> str:
    """Who is next, and has now been."""
    candidates = [make_candidate(name) for name in names]
    replica = candidates[picker.pick(demand, candidates, [0.0] * len(names))].replica
    picker.placed(Lease(demand, Decision(replica, "p", 0, 0, 0.0, {}), 0.0, lambda _: None, lambda _: None))
    return replica.id


def test_round_robin_goes_round_by_id_whatever_the_order_of_candidates() -> None:
    picker, random = RoundRobin(), Random(1)
    assert "".join(go_round(picker, random.sample("abc", 3)) for _ in range(9)) == "abcabcabc"


def test_round_robin_keeps_its_order_when_replicas_come_and_go() -> None:
    picker = RoundRobin()
    fleets = ("abc", "abc", "ac", "abc", "b", "abcd", "d", "abcd")
    assert "".join(go_round(picker, names) for names in fleets) == "abcabcda"


def test_round_robin_counts_each_pool_apart() -> None:
    picker, other = RoundRobin(), make_demand(pool=Pool("other"))
    assert "".join(go_round(picker, "ab", demand) for demand in (DEMAND, other, DEMAND, other)) == "aabb"


def test_at_random_is_even() -> None:
    picker = AtRandom(Random(1))
    counts = Counter(picker.pick(DEMAND, fleet(0, 9, 5), [9.0, 0.0, 5.0]) for _ in range(3000))
    assert min(counts.values()) > 850


def test_power_of_two_never_takes_the_busiest_of_three_and_draws_all_pairs() -> None:
    candidates = [make_candidate(name, in_flight=count) for name, count in (("a", 1), ("b", 2), ("c", 3))]
    picker = PowerOfTwo(Random(1))
    counts = Counter(picker.pick(DEMAND, candidates, [0.0] * 3) for _ in range(3000))
    assert set(counts) == {0, 1}
    assert 1800 < counts[0] < 2200


def test_power_of_two_breaks_a_tie_at_random_and_takes_an_only_candidate() -> None:
    picker = PowerOfTwo(Random(1))
    assert {picker.pick(DEMAND, fleet(0, 0), [0.0, 0.0]) for _ in range(50)} == {0, 1}
    assert picker.pick(DEMAND, fleet(0), [0.0]) == 0
