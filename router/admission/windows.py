"""Which of a router's waiters stand in the common line of a pool, and which behind it: of each flow the first few, so
that the line in Redis is as short, and a turn as cheap, however many wait. Knows dues and states; knows no Redis.

A mark stands in the line for those behind: at the due of the first of them. Who comes after it, from whichever router,
is not placed before them: when its turn comes the line stands still until more of those behind have been said.

    BEHIND   waits here only
    NEXT     to be said at the next turn
    LINED    stands in the common line
    GRANTED  was given a place there; it is placed, or put off
    OFF      fitted no place: it asks again a little later, and keeps nobody behind who may fit
    GONE     waits no more
"""

import heapq
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from router.admission.waiters import Waiter

# Of all flows together, as far as each has its least. A window is filled up once half of it has been granted.
MOST_LINED, LEAST_LINED = 2000, 8
# Entries of those who left that are not worth a sweep.
_SPARE_ENTRIES = 16

Key = tuple[float, float, int]


class Stand(Enum):
    """See above. BEHIND -> NEXT -> LINED -> GRANTED -> OFF -> LINED; LINED -> NEXT where Redis was lost; GONE from
    anywhere."""

    BEHIND = "behind"
    NEXT = "next"
    LINED = "lined"
    GRANTED = "granted"
    OFF = "put off"
    GONE = "gone"


@dataclass(eq=False, slots=True)
class Entry:
    """A waiter's place. `key` is its turn within its flow. `pushed` is how it stands in the common line, None while it
    does not."""

    number: int
    key: Key
    waiter: Waiter[Any]
    tokens: float
    window: "Window"
    stand: Stand = Stand.NEXT
    not_before: float = 0.0
    pushed: str | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """What stands in the line for those behind: `word` of `number` at the turn of `key`."""

    number: int
    word: str
    key: Key


@dataclass(eq=False, slots=True)
class Window:
    """One flow in one band. `num_lined` are said or to be said next. All behind come after all that are not: `last` is
    the latest of these since the window was empty. `is_called`: the mark's turn has come."""

    band: int
    flow: str
    num_waiting: int = 0
    num_lined: int = 0
    num_behind: int = 0
    last: Key | None = None
    mark: Mark | None = None
    is_called: bool = False
    _in_order: deque[Entry] = field(default_factory=deque)
    _early: list[tuple[Key, Entry]] = field(default_factory=list)

    def join(self, entry: Entry, most_lined: int) -> None:
        """It is NEXT, or stands BEHIND."""
        self.num_waiting += 1
        key = entry.key
        is_late = self.last is None or key > self.last
        if is_late and (self.num_behind or self.num_lined >= most_lined):
            self._put_behind(entry)
        else:
            self._line_up(entry)

    def is_short(self, most_lined: int) -> bool:
        """Has half of it been granted, or all?"""
        return self.is_called or self.num_lined <= most_lined // 2

    def advance(self, most_lined: int) -> list[Entry]:
        """Those of behind who are NEXT now: as many as fill the window."""
        num_more = most_lined - self.num_lined
        if self.is_called:
            num_more, self.is_called = max(num_more, most_lined // 2), False
        return [self._pop() for _ in range(min(num_more, self.num_behind))]

    def say(self, entry: Entry, word: str) -> None:
        """It stands in the common line from now on."""
        if entry.stand is Stand.OFF:
            self._line_up(entry)
        entry.stand, entry.pushed = Stand.LINED, word

    def grant(self, entry: Entry) -> None:
        entry.stand, entry.pushed = Stand.GRANTED, None
        self.num_lined -= 1

    def leave(self, entry: Entry) -> None:
        """It waits no more."""
        was, entry.stand = entry.stand, Stand.GONE
        self.num_waiting -= 1
        if was is Stand.BEHIND:
            self._left_behind()
        elif was in (Stand.NEXT, Stand.LINED):
            self.num_lined -= 1

    def first_behind(self) -> Entry | None:
        """Whose turn comes after all that are lined."""
        ordered, early = self._in_order, self._early
        while ordered and ordered[0].stand is not Stand.BEHIND:
            ordered.popleft()
        while early and early[0][1].stand is not Stand.BEHIND:
            heapq.heappop(early)
        if not ordered or not early:
            return ordered[0] if ordered else early[0][1] if early else None
        return ordered[0] if ordered[0].key < early[0][0] else early[0][1]

    def _put_behind(self, entry: Entry) -> None:
        entry.stand = Stand.BEHIND
        self.num_behind += 1
        ordered = self._in_order
        if not ordered or entry.key > ordered[-1].key:
            ordered.append(entry)
        else:
            heapq.heappush(self._early, (entry.key, entry))

    def _line_up(self, entry: Entry) -> None:
        entry.stand = Stand.NEXT
        self.num_lined += 1
        if self.last is None or entry.key > self.last:
            self.last = entry.key

    def _pop(self) -> Entry:
        """Who was first behind is lined."""
        entry = self.first_behind()
        assert entry is not None  # their number says so
        if self._in_order and self._in_order[0] is entry:
            self._in_order.popleft()
        else:
            heapq.heappop(self._early)
        self.num_behind -= 1
        self._line_up(entry)
        return entry

    def _left_behind(self) -> None:
        self.num_behind -= 1
        if len(self._in_order) + len(self._early) > 2 * self.num_behind + _SPARE_ENTRIES:
            self._in_order = deque(entry for entry in self._in_order if entry.stand is Stand.BEHIND)
            self._early = [pair for pair in self._early if pair[1].stand is Stand.BEHIND]
            heapq.heapify(self._early)

    def __repr__(self) -> str:
        return f"<Window {self.flow} {self.num_lined} lined, {self.num_behind} behind>"
