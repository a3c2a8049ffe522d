"""Waiters, and the orders in which a flow's own are kept: by turn, and by age. Knows one flow in one band; knows no
other flow, no clock and no task.

Who left stays where it is until it surfaces or those who left outnumber the rest: leaving costs nothing.
"""

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from router.admission.bands import band_of_priority, unnamed
from router.admission.flows import Flow
from router.core import Band, Demand, Standing

T = TypeVar("T")
Limits = tuple[str | None, frozenset[str]]
# A flow's turn among others, its head's due and sequence, and the flow.
Entry = tuple[float, float, int, Flow]

NO_LIMITS: Limits = (None, frozenset())

# Within a flow the earliest deadline goes first; but each goes as if it had no longer than this, so that those with
# short deadlines cannot pass it for ever. A step of a body's priority within its band counts as so much waiting.
PATIENCE_S = 30.0
PRIORITY_STEP_S = 10.0
# Entries of those who left that are not worth a sweep.
_SPARE_ENTRIES = 16


@dataclass(eq=False, slots=True)
class Waiter(Generic[T]):
    """One demand in line. `ticket` is what its owner waits on; the line never looks at it. `number` counts the waiters
    of its flow and band."""

    demand: Demand
    ticket: T
    standing: Standing
    joined_at: float
    due: float
    sequence: int
    number: int = 0
    has_left: bool = False

    @property
    def limits(self) -> Limits:
        return limits_of(self.demand)

    @property
    def band(self) -> Band:
        return self.standing.band

    def __repr__(self) -> str:
        return f"<Waiter {self.demand.request.id} {'gone' if self.has_left else 'in line'}>"


def limits_of(demand: Demand) -> Limits:
    return demand.adapter, demand.tried


def standing_of(demand: Demand) -> Standing:
    return demand.standing or unnamed(demand.request.priority)


def due_of(demand: Demand) -> float:
    """Its turn among those of its flow and band."""
    request = demand.request
    due = min(request.deadline, request.arrived + PATIENCE_S)
    if request.priority:
        due += PRIORITY_STEP_S * (request.priority - _least_priority(band_of_priority(request.priority)))
    return due


def _least_priority(band: Band) -> int:
    return -1 if band is Band.HIGH else band - 1


@dataclass(eq=False, slots=True)
class Run(Generic[T]):
    """One flow's waiters in one lane and band, by due, then sequence. `listed` is its crowd's.

    Mostly dues come in their order: then it is a plain queue, and no longer one is slower. Others go to a heap.
    """

    listed: Entry | None = None
    num_waiting: int = 0
    _in_order: deque[Waiter[T]] = field(default_factory=deque)
    _early: list[tuple[float, int, Waiter[T]]] = field(default_factory=list)

    def push(self, waiter: Waiter[T]) -> None:
        """Sequences only grow."""
        ordered = self._in_order
        if not ordered or waiter.due >= ordered[-1].due:
            ordered.append(waiter)
        else:
            heapq.heappush(self._early, (waiter.due, waiter.sequence, waiter))
        self.num_waiting += 1

    def discard_one(self) -> None:
        """One of them has left."""
        self.num_waiting -= 1
        if len(self._in_order) + len(self._early) > 2 * self.num_waiting + _SPARE_ENTRIES:
            self._in_order = deque(_present(self._in_order))
            self._early = [entry for entry in self._early if not entry[2].has_left]
            heapq.heapify(self._early)

    def head(self) -> Waiter[T]:
        """Whose turn it is. There is one."""
        ordered, early = self._in_order, self._early
        while ordered and ordered[0].has_left:
            ordered.popleft()
        while early and early[0][2].has_left:
            heapq.heappop(early)
        if not early:
            return ordered[0]
        if not ordered:
            return early[0][2]
        first, other = ordered[0], early[0][2]
        return first if (first.due, first.sequence) < (other.due, other.sequence) else other


@dataclass(eq=False, slots=True)
class Trail(Generic[T]):
    """Waiters by when they joined, and how many have gone."""

    num_waiting: int = 0
    num_gone: int = 0
    _waiters: deque[Waiter[T]] = field(default_factory=deque)

    def push(self, waiter: Waiter[T]) -> None:
        self._waiters.append(waiter)
        self.num_waiting += 1

    def discard_one(self) -> None:
        """One of them has left."""
        self.num_waiting -= 1
        self.num_gone += 1
        if len(self._waiters) > 2 * self.num_waiting + _SPARE_ENTRIES:
            self._waiters = deque(_present(self._waiters))

    def oldest(self) -> Waiter[T] | None:
        waiters = self._waiters
        while waiters and waiters[0].has_left:
            waiters.popleft()
        return waiters[0] if waiters else None

    def newest(self) -> Waiter[T] | None:
        waiters = self._waiters
        while waiters and waiters[-1].has_left:
            waiters.pop()
        return waiters[-1] if waiters else None


def _present(waiters: Iterable[Waiter[T]]) -> Iterator[Waiter[T]]:
    return (waiter for waiter in waiters if not waiter.has_left)
