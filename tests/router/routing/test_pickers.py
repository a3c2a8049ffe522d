from collections import Counter
from random import Random

from router.core import Candidate, Pool
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


def test_round_robin_goes_round_by_id_whatever_the_order_of_candidates() -> None:
    picker, random, served = RoundRobin(), Random(1), []
    for _ in range(9):
        candidates = fleet(0, 0, 0)
        random.shuffle(candidates)
        served.append(candidates[picker.pick(DEMAND, candidates, [0.0] * 3)].replica.id)
    assert "".join(served) == "abcabcabc"


def test_round_robin_keeps_its_order_when_replicas_come_and_go() -> None:
    picker, served = RoundRobin(), ""
    for names in ("abc", "abc", "ac", "abc", "b", "abcd", "d", "abcd"):
        candidates = [make_candidate(name) for name in names]
        served += candidates[picker.pick(DEMAND, candidates, [0.0] * len(names))].replica.id
    assert served == "abcabcda"


def test_round_robin_counts_each_pool_apart() -> None:
    picker = RoundRobin()
    other = make_demand(pool=Pool("other"))
    picks = [picker.pick(demand, fleet(0, 0), [0.0, 0.0]) for demand in (DEMAND, other, DEMAND, other)]
    assert picks == [0, 0, 1, 1]


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
