"""What replicas and siblings tell a worker of caches, taken in by slices: a turn of the event loop gives it so much
time and no more. Knows the order of what came; knows no sockets.

Siblings' dispatches are hints, and of too many some are left out. What replicas tell is exact only if nothing is: a
worker that cannot follow says so, and is told everything anew.
"""

import asyncio
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from router.prefix.caches import Caches
from router.prefix.changes import Change, num_blocks

# Of a millisecond; the last change of a slice may take the rest.
SLICE_S = 0.0009
MAX_WAITING_CHAINS = 20_000
MAX_WAITING_BLOCKS = 4_000_000


class Overrun(ValueError):
    """More came than could be taken in."""


@dataclass(eq=False, slots=True)
class Intake:
    """`knows(replica_id)`: is there such a replica?"""

    caches: Caches
    knows: Callable[[str], bool]
    clock: Callable[[], float] = time.perf_counter
    now: Callable[[], float] = time.monotonic
    _waiting: "deque[tuple[str, bytes | Change]]" = field(default_factory=deque, init=False)
    _num_chains: int = field(default=0, init=False)
    _num_blocks: int = field(default=0, init=False)

    @property
    def num_waiting_blocks(self) -> int:
        """That replicas told of."""
        return self._num_blocks

    def dispatched(self, chains: Sequence[tuple[str, bytes]]) -> None:
        """Prompts that siblings sent to replicas; none: what was sent there is lost."""
        was_idle = not self._waiting
        for replica_id, packed in chains:
            if packed and self._num_chains >= MAX_WAITING_CHAINS:
                continue
            self._num_chains += bool(packed)
            self._waiting.append((replica_id, packed))
        self._begin(was_idle)

    def told(self, replica_id: str, changes: Sequence[Change]) -> None:
        """Raises Overrun where too much waits already; nothing waits any more then."""
        was_idle = not self._waiting
        for change in changes:
            self._num_blocks += num_blocks(change)
            self._waiting.append((replica_id, change))
        if self._num_blocks > MAX_WAITING_BLOCKS:
            self.forget()
            raise Overrun(f"more than {MAX_WAITING_BLOCKS} blocks wait to be taken in")
        self._begin(was_idle)

    def forget(self) -> None:
        """All is told anew: what waits is void."""
        self._waiting.clear()
        self._num_chains = self._num_blocks = 0

    def take_some(self) -> None:
        """A slice."""
        until = self.clock() + SLICE_S
        while self._waiting and self.clock() < until:
            self._take_in(*self._waiting.popleft())

    def _begin(self, was_idle: bool) -> None:
        if was_idle and self._waiting:
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self.take_some()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._go_on)

    def _take_in(self, replica_id: str, item: bytes | Change) -> None:
        if not isinstance(item, bytes):
            self._num_blocks -= num_blocks(item)
            if self.knows(replica_id):
                self.caches.tell(replica_id, [item])
        elif not item:
            self.caches.index.remove(replica_id)
        else:
            self._num_chains -= 1
            if self.knows(replica_id):
                hashes = array("Q", item)
                self.caches.index.insert(replica_id, hashes)
                self.caches.knowledge.dispatched_elsewhere(replica_id, hashes, self.now())

    def __repr__(self) -> str:
        return f"<Intake {len(self._waiting)} waiting>"
