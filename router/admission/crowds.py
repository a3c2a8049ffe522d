"""Those of one lane and band, flow by flow. Knows whose turn it is among flows; knows no clock and no places.

A flow's counter moves while it stands in the heap: one that grew is put back where it belongs when it surfaces; one
that was refunded is listed anew at once (`touch`), and its older entry counts no more.
"""

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from router.admission.flows import Flow
from router.admission.waiters import Run, Waiter

T = TypeVar("T")
_SPARE_ENTRIES = 16


@dataclass(eq=False, slots=True)
class Crowd(Generic[T]):
    """Runs by flow, and a heap of flows by counter, then by who came first."""

    runs: dict[Flow, Run[T]] = field(default_factory=dict)
    _heap: list[tuple[float, int, Flow]] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def push(self, flow: Flow, waiter: Waiter[T]) -> None:
        run = self.runs.get(flow)
        if run is None:
            run = self.runs[flow] = Run()
            flow.crowds[self] = None
            self._list(flow, run)
        run.push(waiter)

    def discard_one(self, flow: Flow) -> None:
        """A waiter of this flow has left."""
        run = self.runs[flow]
        run.discard_one()
        if run.num_waiting == 0:
            del self.runs[flow]
            del flow.crowds[self]

    def touch(self, flow: Flow) -> None:
        """Its counter has sunk."""
        self._list(flow, self.runs[flow])

    def head(self) -> tuple[Flow, Waiter[T]]:
        """Whose turn it is. Somebody is here."""
        heap, runs = self._heap, self.runs
        while True:
            counter, _, flow = heap[0]
            run = runs.get(flow)
            if run is None or run.listed_at != counter:
                heapq.heappop(heap)
            elif flow.counter != counter:
                run.listed_at = flow.counter
                heapq.heapreplace(heap, (flow.counter, next(self._numbers), flow))
            else:
                return flow, run.head()

    def _list(self, flow: Flow, run: Run[T]) -> None:
        run.listed_at = flow.counter
        heapq.heappush(self._heap, (flow.counter, next(self._numbers), flow))
        if len(self._heap) > 2 * len(self.runs) + _SPARE_ENTRIES:
            self._heap = [(run.listed_at, next(self._numbers), flow) for flow, run in self.runs.items()]
            heapq.heapify(self._heap)

    def __repr__(self) -> str:
        return f"<Crowd of {len(self.runs)} flows>"
