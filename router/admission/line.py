"""The line of those who wait for a place in one pool. Knows order and limits; knows no clock, no task and no future.

Order is priority (lower first), then arrival of the request, then a sequence number. A demand may have limits of its
own: the adapter it needs, the replicas it has tried. Demands of equal limits share a lane, and of a lane only the
head is ever offered a place: where the head does not fit, nobody behind it does. So a blocked head holds up its own
lane and no other, and a pump costs one try per lane, not per waiter.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from router.core import Demand

T = TypeVar("T")
Key = tuple[int, float, int]
Limits = tuple[str | None, frozenset[str]]

NO_LIMITS: Limits = (None, frozenset())
# Lanes tried in vain in one go: at well under 0.1 ms a try, a few milliseconds of the event loop.
MAX_MISSES = 32
# Dead entries a lane keeps before it is worth a sweep.
_SPARE_ENTRIES = 16


@dataclass(eq=False, slots=True)
class Waiter(Generic[T]):
    """One demand in line. `ticket` is what its owner waits on; the line never looks at it."""

    demand: Demand
    ticket: T
    key: Key
    joined_at: float
    has_left: bool = False

    @property
    def limits(self) -> Limits:
        return limits_of(self.demand)

    def __repr__(self) -> str:
        return f"<Waiter {self.demand.request.id} {'gone' if self.has_left else 'in line'}>"


@dataclass(eq=False, slots=True)
class _Lane(Generic[T]):
    """Waiters of equal limits. Those who left stay in the heap until they surface or outnumber the rest."""

    limits: Limits
    heap: list[tuple[Key, Waiter[T]]] = field(default_factory=list)
    num_waiting: int = 0

    def push(self, waiter: Waiter[T]) -> None:
        heapq.heappush(self.heap, (waiter.key, waiter))
        self.num_waiting += 1

    def discard_one(self) -> None:
        """A waiter of this lane has left."""
        self.num_waiting -= 1
        if len(self.heap) > 2 * self.num_waiting + _SPARE_ENTRIES:
            self.heap = [entry for entry in self.heap if not entry[1].has_left]
            heapq.heapify(self.heap)

    def head(self) -> Waiter[T]:
        while self.heap[0][1].has_left:
            heapq.heappop(self.heap)
        return self.heap[0][1]


@dataclass(eq=False, slots=True)
class Line(Generic[T]):
    """The waiters of one pool. Joining and leaving cost O(log n) or less, amortised."""

    _waiting: dict[Waiter[T], None] = field(default_factory=dict, init=False)
    _lanes: dict[Limits, _Lane[T]] = field(default_factory=dict, init=False)
    _passed: set[Limits] = field(default_factory=set, init=False)

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def oldest(self) -> Waiter[T] | None:
        """The one who joined first of those still here, whatever its turn."""
        return next(iter(self._waiting), None)

    def is_held_up(self, demand: Demand) -> bool:
        """Does anybody wait whose being here tells that this demand would find no place either?

        That is anybody of equal limits, and anybody without limits: they could take any place there is.
        """
        return limits_of(demand) in self._lanes or NO_LIMITS in self._lanes

    def join(self, demand: Demand, ticket: T, now: float, sequence: int) -> Waiter[T]:
        waiter = Waiter(demand, ticket, (demand.request.priority, demand.request.arrived, sequence), now)
        self._waiting[waiter] = None
        lane = self._lanes.setdefault(waiter.limits, _Lane(waiter.limits))
        lane.push(waiter)
        return waiter

    def leave(self, waiter: Waiter[T]) -> None:
        """Later calls do nothing."""
        if waiter.has_left:
            return
        waiter.has_left = True
        del self._waiting[waiter]
        lane = self._lanes[waiter.limits]
        lane.discard_one()
        if lane.num_waiting == 0:
            del self._lanes[waiter.limits]

    def advance(self, serve: Callable[[Waiter[T]], bool]) -> bool:
        """Offer places in order: `serve` says whether the waiter is done with the line. True: call again for the rest.

        It ends when a waiter without limits finds no place, as the pool is full then; or after MAX_MISSES lanes, which
        the next call passes over, so that every lane gets its turn however many are blocked.
        """
        heads = [(lane.head().key, lane) for lane in self._lanes.values() if lane.limits not in self._passed]
        heapq.heapify(heads)
        missed: set[Limits] = set()
        while heads and len(missed) < MAX_MISSES:
            _, lane = heapq.heappop(heads)
            waiter = lane.head()
            if serve(waiter):
                self.leave(waiter)
                if lane.num_waiting:
                    heapq.heappush(heads, (lane.head().key, lane))
            elif lane.limits == NO_LIMITS:
                heads.clear()
            else:
                missed.add(lane.limits)
        self._passed = self._passed | missed if heads else set()
        return bool(heads)

    def __repr__(self) -> str:
        return f"<Line {len(self._waiting)} waiting in {len(self._lanes)} lanes>"


def limits_of(demand: Demand) -> Limits:
    return demand.adapter, demand.tried
