"""The order of turns."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import InvalidRequest, Overloaded
from router.transports.turns import Turns


def test_turns_come_one_after_the_other() -> None:
    turns = Turns[int]("id")
    turns.add("a", 1)
    turns.add("b", 2)
    assert (turns.next(), turns.next(), repr(turns)) == (1, None, "<Turns a under way, 1 wait>")
    turns.end()
    assert (turns.next(), turns.is_idle) == (2, False)
    turns.end()
    assert (turns.next(), turns.is_idle) == (None, True)


def test_none_begins_while_it_is_held() -> None:
    is_held = [True]
    turns = Turns[int]("id", lambda: is_held[0])
    turns.add("a", 1)
    assert turns.next() is None
    is_held[0] = False
    assert turns.next() == 1


def test_an_id_in_use_and_too_many_are_refused() -> None:
    turns = Turns[int]("turn_id", most_waiting=1)
    turns.add("a", 1)
    turns.next()
    turns.add("b", 2)
    for id in ("a", "b"):
        with pytest.raises(InvalidRequest) as caught:
            turns.add(id, 3)
        assert caught.value.param == "turn_id"
    with pytest.raises(Overloaded):
        turns.add("c", 3)


@given(st.lists(st.tuples(st.sampled_from(["add", "next", "end", "withdraw"]), st.integers(0, 9)), max_size=60))
def test_each_turn_is_given_once_or_withdrawn_in_the_order_it_came(steps: list[tuple[str, int]]) -> None:
    turns, expected, given = Turns[int]("id", most_waiting=4), list[int](), list[int]()
    for step, number in steps:
        if step == "add":
            try:
                turns.add(str(number), number)
                expected.append(number)
            except (InvalidRequest, Overloaded):
                assert number in expected or turns.num_waiting == 4 or turns.current == str(number)
        elif step == "next" and (turn := turns.next()) is not None:
            given.append(turn)
            assert turn == expected.pop(0)
        elif step == "end":
            turns.end()
        elif step == "withdraw":
            assert turns.withdraw(str(number)) is (number in expected)
            expected = [each for each in expected if each != number]
        assert turns.num_waiting == len(expected)
        assert turns.is_idle is (turns.current is None and not expected)
