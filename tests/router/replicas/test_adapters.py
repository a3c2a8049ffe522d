from random import Random

import pytest

from router.replicas.adapters import MIN_LOAD_S, Residency


def test_the_adapters_most_recently_used_stay() -> None:
    residency = Residency(num_slots=2)
    assert [residency.use(name) for name in "abab"] == [False, False, True, True]
    residency.use("c")
    assert list(residency.names) == ["b", "c"]
    assert repr(residency) == "<Residency b, c, 50 ms a load>"


def test_a_restart_empties_all_slots() -> None:
    residency = Residency()
    residency.use("a")
    names = residency.names
    residency.forget()
    assert not names
    assert not residency.use("a")


def test_the_time_of_a_load_is_learned_and_one_wild_sample_moves_it_little() -> None:
    residency = Residency()
    for _ in range(60):
        residency.learn(0.4)
    assert residency.load_s == pytest.approx(0.4, rel=0.01)
    residency.learn(3600.0)
    assert residency.load_s < 0.7
    for _ in range(200):
        residency.learn(-1.0)
    assert residency.load_s == MIN_LOAD_S


def test_never_more_than_the_slots_are_resident() -> None:
    dice, residency = Random(1), Residency(num_slots=3)
    last: list[str] = []
    for _ in range(500):
        name = dice.choice("abcdef")
        last = [*(each for each in last if each != name), name][-3:]
        residency.use(name)
        assert list(residency.names) == last
