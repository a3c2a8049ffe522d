"""How long each flow's part of one band is, and which is the longest: whose newest gives way when a line is full. Knows
counts; knows no order and no clock."""

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from router.admission.flows import Flow
from router.admission.waiters import Trail, Waiter

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class Stretches(Generic[T]):
    """One band's waiters by flow, and all by age. A length moves by one at a time: so the longest is always at hand."""

    everyone: Trail[T] = field(default_factory=Trail)
    _by_flow: dict[Flow, Trail[T]] = field(default_factory=dict)
    _by_length: dict[int, dict[Flow, None]] = field(default_factory=dict)
    _longest: int = 0

    @property
    def num_waiting(self) -> int:
        return self.everyone.num_waiting

    @property
    def num_flows(self) -> int:
        return len(self._by_flow)

    def length_of(self, flow: Flow) -> int:
        trail = self._by_flow.get(flow)
        return trail.num_waiting if trail else 0

    def num_earlier(self, flow: Flow, waiter: Waiter[T]) -> int:
        """How many of its flow joined before it and still wait, as if they left in the order in which they came."""
        trail = self._by_flow[flow]
        return min(max(0, waiter.number - trail.num_gone), trail.num_waiting - 1)

    def push(self, flow: Flow, waiter: Waiter[T]) -> None:
        trail = self._by_flow.get(flow)
        if trail is None:
            trail = self._by_flow[flow] = Trail()
        waiter.number = trail.num_gone + trail.num_waiting
        trail.push(waiter)
        self.everyone.push(waiter)
        self._move(flow, trail.num_waiting - 1, trail.num_waiting)
        self._longest = max(self._longest, trail.num_waiting)

    def discard_one(self, flow: Flow) -> None:
        """A waiter of this flow has left."""
        trail = self._by_flow[flow]
        trail.discard_one()
        self.everyone.discard_one()
        self._move(flow, trail.num_waiting + 1, trail.num_waiting)
        if trail.num_waiting == 0:
            del self._by_flow[flow]
        if self._longest not in self._by_length:
            self._longest -= 1

    def newest_of_longest(self) -> tuple[int, Waiter[T]] | None:
        """Length of the longest stretch, and who joined it last."""
        if not self._longest:
            return None
        flow = next(iter(self._by_length[self._longest]))
        newest = self._by_flow[flow].newest()
        assert newest is not None  # its length says so
        return self._longest, newest

    def _move(self, flow: Flow, before: int, now: int) -> None:
        if before:
            peers = self._by_length[before]
            del peers[flow]
            if not peers:
                del self._by_length[before]
        if now:
            self._by_length.setdefault(now, {})[flow] = None

    def __repr__(self) -> str:
        return f"<Stretches of {self.num_flows} flows, {self.num_waiting} waiting>"
