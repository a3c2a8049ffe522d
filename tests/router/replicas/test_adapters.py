from random import Random

import pytest

from router.replicas.adapters import MIN_LOAD_S, Residency, Slots


def served(residency: Residency, name: str, now: float = 0.0) -> bool:
    """A request that has come and gone. Was its adapter there?"""
    was_there = residency.use(name, now)
    residency.leave(name)
    return was_there


def test_the_adapters_most_recently_used_stay() -> None:
    residency = Residency(num_slots=2)
    assert [served(residency, name) for name in "abab"] == [False, False, True, True]
    served(residency, "c")
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
        served(residency, name, now)
        assert list(residency.names) == last


def test_what_is_at_work_keeps_its_slot_and_more_of_them_wait() -> None:
    residency = Residency(num_slots=2)
    for name in "aabc":
        residency.use(name, 1.0)
    assert (list(residency.names), residency.num_free) == (["a", "b", "c"], -1)
    residency.leave("a")
    assert residency.num_free == -1, "another request has it at work"
    residency.leave("a")
    residency.leave("b")
    assert residency.num_free == 1
    assert not residency.use("d", 2.0)
    assert (list(residency.names), residency.num_free) == (["c", "d"], 0)


def test_slots_that_others_have_at_work_are_not_free() -> None:
    residency = Residency(num_slots=4)
    residency.use("a", 1.0)
    residency.report(Slots(at=2.0, active=frozenset("abc")))
    assert residency.num_free == 1
    residency.use("b", 3.0)
    assert residency.num_free == 1, "it was counted already"
    residency.leave("b")
    residency.report(Slots(at=4.0, active=frozenset("a")))
    assert residency.num_free == 3


def test_requests_that_come_and_go_leave_all_slots_free() -> None:
    dice, residency, at_work = Random(2), Residency(num_slots=3), list[str]()
    for now in range(500):
        if at_work and dice.random() < 0.5:
            residency.leave(at_work.pop(dice.randrange(len(at_work))))
        else:
            at_work.append(dice.choice("abcdef"))
            residency.use(at_work[-1], now)
        assert residency.num_free == 3 - len(set(at_work))
        assert set(at_work) <= set(residency.names)
        assert len(residency.names) <= max(3, len(set(at_work)))


def test_what_a_replica_says_to_lie_in_its_slots_corrects_the_model() -> None:
    residency = Residency()
    names = residency.names
    for name in "abc":
        served(residency, name, 1.0)
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
    """Pitfall (vllm 45325): the metric shows who runs, and one who idles in its slot is not in it."""
    residency = Residency()
    for name in "abc":
        served(residency, name, 1.0)
    residency.report(Slots(at=2.0, num_slots=3, active=frozenset("ad")))
    assert list(residency.names) == ["c", "a", "d"]
    residency.report(Slots(at=3.0, num_slots=3))
    assert list(residency.names) == ["c", "a", "d"]


def test_fewer_slots_than_thought_hold_fewer_adapters() -> None:
    residency = Residency()
    for name in "abc":
        served(residency, name, 1.0)
    residency.report(Slots(at=2.0, num_slots=1, active=frozenset("c")))
    assert list(residency.names) == ["c"]
