"""Windows: who of a flow stands in the common line, and who behind it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.admission.waiters import Waiter, due_of, standing_of
from router.admission.windows import Entry, Stand, Window
from tests.router.nouns import make_demand

MOST = 4


def entry_of(window: Window, number: int, due: float) -> Entry:
    demand = make_demand(str(number), arrived=0.0, deadline=due)
    waiter: Waiter[Any] = Waiter(demand, None, standing_of(demand), 0.0, due_of(demand), number)
    entry = Entry(number, (due, 0.0, number), waiter, 1.0, window)
    window.join(entry, MOST)
    return entry


def lined(window: Window, entries: list[Entry]) -> list[int]:
    return [entry.number for entry in entries if entry.stand in (Stand.NEXT, Stand.LINED)]


def test_the_first_few_are_lined_and_the_rest_stand_behind_in_their_order() -> None:
    window = Window(1, "t")
    entries = [entry_of(window, number, 10.0 + number) for number in range(10)]
    assert lined(window, entries) == [0, 1, 2, 3]
    assert window.first_behind() is entries[4]
    assert repr(window) == "<Window t 4 lined, 6 behind>"


def test_who_comes_before_one_that_is_lined_is_lined_however_many_are() -> None:
    window = Window(1, "t")
    entries = [entry_of(window, number, 10.0 + number) for number in range(6)]
    entries.append(entry_of(window, 6, 12.5))
    assert lined(window, entries) == [0, 1, 2, 3, 6]
    entries.append(entry_of(window, 7, 13.5))
    assert window.first_behind() is entries[7], "it comes after all that are lined, and before those behind"


def test_a_window_is_filled_up_once_half_of_it_is_free_or_its_mark_was_called() -> None:
    window = Window(1, "t")
    entries = [entry_of(window, number, 10.0 + number) for number in range(10)]
    window.grant(entries[0])
    assert not window.is_short(MOST)
    window.is_called = True
    assert window.is_short(MOST)
    assert [entry.number for entry in window.advance(MOST)] == [4, 5], "half a window, were it ever so full"
    for number in (1, 2, 3):
        window.grant(entries[number])
    assert window.is_short(MOST)
    assert [entry.number for entry in window.advance(MOST)] == [6, 7]


def test_who_was_put_off_keeps_nobody_behind() -> None:
    window = Window(1, "t")
    entries = [entry_of(window, number, 10.0 + number) for number in range(8)]
    for entry in entries[:4]:
        window.grant(entry)
        entry.stand = Stand.OFF
    assert [entry.number for entry in window.advance(MOST)] == [4, 5, 6, 7]
    window.say(entries[0], "word")
    assert (entries[0].stand, window.num_lined) == (Stand.LINED, 5)


@pytest.mark.parametrize("most", [2, 5])
@given(st.lists(st.tuples(st.sampled_from(["join", "leave", "advance", "grant"]), st.integers(0, 40)), max_size=150))
def test_all_behind_come_after_all_that_are_lined_whatever_happens(most: int, moves: list[tuple[str, int]]) -> None:
    window, entries = Window(1, "t"), list[Entry]()
    for number, (move, value) in enumerate(moves):
        if move == "join":
            demand = make_demand(str(number))
            waiter: Waiter[Any] = Waiter(demand, None, standing_of(demand), 0.0, 0.0, number)
            entries.append(Entry(number, (float(value), 0.0, number), waiter, 1.0, window))
            window.join(entries[-1], most)
        elif move == "advance":
            if window.is_short(most):
                window.advance(most)
        elif entries:
            chosen = entries[value % len(entries)]
            if move == "leave":
                entries.remove(chosen)
                window.leave(chosen)
            elif chosen.stand is Stand.NEXT:
                window.grant(chosen)
        in_line = [entry for entry in entries if entry.stand is Stand.NEXT]
        behind = sorted((entry for entry in entries if entry.stand is Stand.BEHIND), key=lambda entry: entry.key)
        assert (window.num_lined, window.num_behind, window.num_waiting) == (len(in_line), len(behind), len(entries))
        assert window.first_behind() is (behind[0] if behind else None)
        assert not behind or all(entry.key < behind[0].key for entry in in_line)
