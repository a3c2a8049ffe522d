"""Those of one lane and band, flow by flow. Knows whose turn it is among flows; knows no clock and no places.

What a flow is listed by moves while it stands in the heap. Where that grew, as it was served or its head left, it is
put back where it belongs when it surfaces; where it sank, by a refund or a newcomer who is due earlier, the flow is
listed anew at once, and its older entry counts no more.
"""

import heapq
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from router.admission.flows import Flow, Flows
from router.admission.waiters import Entry, Run, Waiter

T = TypeVar("T")
_SPARE_ENTRIES = 16


@dataclass(eq=False, slots=True)
class Crowd(Generic[T]):
    """Runs by flow, and a heap of flows by turn, then by when their heads are due."""

    flows: Flows
    runs: dict[Flow, Run[T]] = field(default_factory=dict)
    _heap: list[Entry] = field(default_factory=list)

    def push(self, flow: Flow, waiter: Waiter[T]) -> None:
        run = self.runs.get(flow)
        if run is None:
            run = self.runs[flow] = Run()
            flow.crowds[self] = None
        run.push(waiter)
        if run.listed is None or (waiter.due, waiter.sequence) < run.listed[1:3]:
            self._list(flow, run)

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

    def head(self) -> tuple[float, Waiter[T]]:
        """The turn of the flow whose turn it is, and its head. Somebody is here."""
        heap, runs, turn_of = self._heap, self.runs, self.flows.turn_of
        while True:
            entry = heap[0]
            flow = entry[3]
            run = runs.get(flow)
            if run is None or run.listed is not entry:
                heapq.heappop(heap)
                continue
            waiter, turn = run.head(), turn_of(flow)
            if turn == entry[0] and waiter.sequence == entry[2]:
                return turn, waiter
            run.listed = (turn, waiter.due, waiter.sequence, flow)
            heapq.heapreplace(heap, run.listed)

    def _list(self, flow: Flow, run: Run[T]) -> None:
        waiter = run.head()
        run.listed = (self.flows.turn_of(flow), waiter.due, waiter.sequence, flow)
        heapq.heappush(self._heap, run.listed)
        if len(self._heap) > 2 * len(self.runs) + _SPARE_ENTRIES:
            self._heap = [run.listed for run in self.runs.values() if run.listed is not None]
            heapq.heapify(self._heap)

    def __repr__(self) -> str:
        return f"<Crowd of {len(self.runs)} flows>"
