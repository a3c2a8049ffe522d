"""One router's waiters in the common line of a pool: who joins it at the next turn, who left it, and where marks stand.
Knows flows and members' words; knows no places, no clock and no Redis."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from router.admission.waiters import NO_LIMITS, Waiter
from router.admission.windows import LEAST_LINED, MOST_LINED, Entry, Mark, Stand, Window
from router.core import Standing

MOST_JOINS = 1000
# What a mark has in place of tokens.
_MORE = "more"


@dataclass(frozen=True, slots=True)
class Says:
    """Of the turn that is composed. `offset_s` makes our clock that of Redis; `has_places`: a request without limits
    would be placed at once."""

    epoch: int
    now: float
    offset_s: float
    has_places: bool


@dataclass(eq=False, slots=True)
class Lineup:
    """`router` is a name without `|` or `,`."""

    router: str
    _entries: dict[Waiter[Any], Entry] = field(default_factory=dict)
    _windows: dict[tuple[int, str, str], Window] = field(default_factory=dict)
    _touched: dict[Window, None] = field(default_factory=dict)
    _next: dict[int, Entry] = field(default_factory=dict)
    _lined: dict[int, Entry] = field(default_factory=dict)
    _marked: dict[int, Window] = field(default_factory=dict)
    _leaves: list[tuple[int, str, str]] = field(default_factory=list)
    _newest_number: int = 0

    @property
    def num_waiting(self) -> int:
        return len(self._entries)

    @property
    def has_leaves(self) -> bool:
        return bool(self._leaves)

    @property
    def has_pushed(self) -> bool:
        """Does anybody stand in the common line?"""
        return bool(self._lined or self._marked)

    def join(self, waiter: Waiter[Any], tokens: float) -> None:
        self._newest_number += 1
        number, window = self._newest_number, self._window_of(waiter.standing)
        key = (waiter.due, waiter.demand.request.arrived, number)
        entry = self._entries[waiter] = Entry(number, key, waiter, tokens, window)
        window.join(entry, self._most_lined)
        if entry.stand is Stand.NEXT:
            self._next[entry.number] = entry
        elif window.mark is None or entry.key < window.mark.key:
            self._touched[window] = None

    def leave(self, waiter: Waiter[Any]) -> None:
        """Later calls do nothing."""
        entry = self._entries.pop(waiter, None)
        if entry is None:
            return
        window = entry.window
        if entry.pushed is not None:
            del self._lined[entry.number]
            self._leaves.append((window.band, window.flow, entry.pushed))
        else:
            self._next.pop(entry.number, None)
        window.leave(entry)
        self._look_at(window)
        if not window.num_waiting:
            del self._windows[_window_key(waiter.standing)]

    def granted(self, numbers: Iterable[int]) -> list[Waiter[Any]]:
        """Those of these who still wait; a mark's turn calls for more of its window."""
        found = []
        for number in numbers:
            if (entry := self._lined.pop(number, None)) is not None:
                entry.window.grant(entry)
                self._look_at(entry.window)
                found.append(entry.waiter)
            elif (window := self._marked.pop(number, None)) is not None:
                window.mark, window.is_called = None, True
                self._touched[window] = None
        return found

    def put_off(self, waiter: Waiter[Any], until: float) -> None:
        """Who was granted a place is not placed, and asks again then."""
        entry = self._entries.get(waiter)
        if entry is not None:
            entry.not_before, entry.stand = until, Stand.OFF
            self._next[entry.number] = entry

    def lose(self) -> None:
        """Nobody stands in the line any more: all are to be said anew."""
        self._leaves.clear()
        for number, entry in self._lined.items():
            entry.stand, entry.pushed = Stand.NEXT, None
            self._next[number] = entry
        self._lined.clear()
        for window in self._marked.values():
            window.mark = None
            self._touched[window] = None
        self._marked.clear()

    def compose(self, says: Says | None) -> list[Any]:
        """The script's arguments: how many marks there are, who joins, marks that move, who leaves."""
        if says is None:  # a member names its epoch: the first turn is only to register
            return [0, 0, 0, *self._taken_leaves()]
        self._fill_up(says)
        joins, moves = self._joins(says), self._moves(says)
        return [len(self._marked), *joins, *moves, *self._taken_leaves()]

    @property
    def _most_lined(self) -> int:
        return max(LEAST_LINED, MOST_LINED // max(1, len(self._windows)))

    def _window_of(self, standing: Standing) -> Window:
        window = self._windows.get(key := _window_key(standing))
        if window is None:
            window = self._windows[key] = Window(int(standing.band), flow_name(standing))
        return window

    def _look_at(self, window: Window) -> None:
        """It may have to be filled up, and its mark to move."""
        if window.num_behind or window.mark is not None:
            self._touched[window] = None

    def _fill_up(self, says: Says) -> None:
        most = self._most_lined
        for window in self._touched:
            if window.is_short(most) and not _is_short_of_limits_only(window.first_behind(), says):
                for entry in window.advance(most):
                    self._next[entry.number] = entry

    def _joins(self, says: Says) -> list[Any]:
        groups: dict[Window, list[str]] = {}
        for entry in list(islice(self._ripe(says), MOST_JOINS)):
            number, window = entry.number, entry.window
            due, word = self._words(number, entry, f"{entry.tokens:.0f}", says)
            window.say(entry, word)
            self._lined[number] = entry
            del self._next[number]
            if (group := groups.get(window)) is None:
                group = groups[window] = []
            group += (due, word)
        said = [word for of, group in groups.items() for word in (of.band, of.flow, len(group) // 2, *group)]
        return [len(groups), *said]

    def _ripe(self, says: Says) -> Iterator[Entry]:
        """Whose turn it is to join."""
        for entry in self._next.values():
            if entry.not_before <= says.now and not _is_short_of_limits_only(entry, says):
                yield entry

    def _words(self, number: int, entry: Entry, tokens: str, says: Says) -> tuple[str, str]:
        """Due and member of what stands in the line at this entry's turn."""
        due, arrived, _ = entry.key
        arrived_us = int((arrived + says.offset_s) * 1e6)
        weight = entry.waiter.standing.weight
        member = f"{arrived_us:016d}|{self.router}|{says.epoch}|{number:012d}|{tokens}|{weight:g}"
        return f"{(due + says.offset_s) * 1e3:.3f}", member

    def _moves(self, says: Says) -> list[Any]:
        """A mark stands where the first behind would."""
        words, later = list[Any](), dict[Window, None]()
        for window in self._touched:
            first, before = window.first_behind(), window.mark
            if _is_short_of_limits_only(first, says):
                later[window] = None
            elif (first and first.key) != (before and before.key):
                due, member = self._mark(window, first, says)
                words += (window.band, window.flow, before.word if before else "", due, member)
        self._touched = later
        return [len(words) // 5, *words]

    def _mark(self, window: Window, first: Entry | None, says: Says) -> tuple[str, str]:
        if window.mark is not None:
            del self._marked[window.mark.number]
            window.mark = None
        if first is None:
            return "", ""
        self._newest_number += 1
        due, word = self._words(self._newest_number, first, _MORE, says)
        window.mark = Mark(self._newest_number, word, first.key)
        self._marked[window.mark.number] = window
        return due, word

    def _taken_leaves(self) -> list[Any]:
        leaves, self._leaves = self._leaves, []
        return [len(leaves), *(word for leave in leaves for word in leave)]

    def __repr__(self) -> str:
        return f"<Lineup {len(self._lined)} lined of {len(self._entries)} in {len(self._windows)} windows>"


def flow_name(standing: Standing) -> str:
    """`tenant`, or `tenant/flow`; what stands before the first slash is the tenant."""
    tenant = standing.tenant.replace("/", "%2f")
    return f"{tenant}/{standing.flow}" if standing.flow else tenant


def _window_key(standing: Standing) -> tuple[int, str, str]:
    return standing.band, standing.tenant, standing.flow


def _is_short_of_limits_only(entry: Entry | None, says: Says) -> bool:
    """Who is short of an adapter only must not make all others wait."""
    return entry is not None and says.has_places and entry.waiter.limits != NO_LIMITS
