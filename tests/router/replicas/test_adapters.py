from random import Random

import pytest

from router.replicas.adapters import MIN_LOAD_S, Residency, Slots


def test_the_adapters_most_recently_used_stay() -> None:
    residency = Residency(num_slots=2)
    assert [residency.use(name, 0.0) for name in "abab"] == [False, False, True, True]
    residency.use("c", 0.0)
    assert list(residency.names) == ["b", "c"]
    assert repr(residency) == "<Residency b, c, 50 ms a load>"


def test_a_restart_empties_all_slots() -> None:
    residency = Residency()
    residency.use("a", 0.0)
    names = residency.names
    residency.forget()
    assert not names
    assert not residency.use("a", 0.0)


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
    for now in range(500):
        name = dice.choice("abcdef")
        last = [*(each for each in last if each != name), name][-3:]
        residency.use(name, now)
        assert list(residency.names) == last


def test_what_a_replica_says_to_lie_in_its_slots_corrects_the_model() -> None:
    residency = Residency()
    names = residency.names
    for name in "abc":
        residency.use(name, 1.0)
    residency.report(Slots(at=2.0, num_slots=4, resident=frozenset("bd")))
    assert list(names) == ["d", "b"]
    assert residency.num_slots == 4


def test_what_was_sent_after_the_question_stands_whatever_the_answer_says() -> None:
    residency = Residency(num_slots=2)
    residency.use("a", 1.0)
    residency.use("b", 5.0)
    residency.report(Slots(at=4.0, resident=frozenset("a")))
    assert list(residency.names) == ["a", "b"]
    residency.report(Slots(at=6.0, resident=frozenset("a")))
    assert list(residency.names) == ["a"]


def test_one_that_waits_for_its_slot_is_counted_as_there() -> None:
    residency = Residency(num_slots=2)
    residency.use("a", 1.0)
    residency.report(Slots(at=2.0, resident=frozenset("b"), active=frozenset("a")))
    assert list(residency.names) == ["b", "a"]


def test_activity_alone_takes_nothing_away_but_shows_what_was_used_last() -> None:
    """The fault (vllm 45325): the metric shows who runs, and one who idles in its slot is not in it."""
    residency = Residency()
    for name in "abc":
        residency.use(name, 1.0)
    residency.report(Slots(at=2.0, num_slots=3, active=frozenset("ad")))
    assert list(residency.names) == ["c", "a", "d"]
    residency.report(Slots(at=3.0, num_slots=3))
    assert list(residency.names) == ["c", "a", "d"]


def test_fewer_slots_than_thought_hold_fewer_adapters() -> None:
    residency = Residency()
    for name in "abc":
        residency.use(name, 1.0)
    residency.report(Slots(at=2.0, num_slots=1, active=frozenset("c")))
    assert list(residency.names) == ["c"]
