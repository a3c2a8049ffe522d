"""The first check, before any work is done for a request. Knows how many requests are open and whether we drain; knows
nothing of prompts, pools or replicas, and never waits."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from router.errors import Draining, Overloaded

# Both states are expected to be over, or another router to have taken over, within a second.
RETRY_AFTER_S = 1.0


@dataclass(eq=False, slots=True)
class Gate:
    """Bounds the open requests, and closes for good when it drains.

    Where several processes share the bound, `elsewhere()` counts the requests open in the others, and `on_count(num)`
    is told of ours: two that enter in the same moment may exceed it by one each.
    """

    max_open_requests: int
    elsewhere: Callable[[], int] | None = None
    on_count: Callable[[int], None] | None = None
    num_open: int = field(default=0, init=False)
    is_draining: bool = field(default=False, init=False)
    _empty: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def __post_init__(self) -> None:
        if self.max_open_requests < 1:
            raise ValueError("max_open_requests must be at least 1")

    def enter(self) -> None:
        """Let a request in; the caller owes one `leave`. Raises Draining or Overloaded, and then nothing is counted."""
        if self.is_draining:
            raise Draining("this router is shutting down and takes no new requests", retry_after_s=RETRY_AFTER_S)
        num_open = self.num_open if self.elsewhere is None else self.num_open + self.elsewhere()
        if num_open >= self.max_open_requests:
            raise Overloaded(f"{num_open} requests are open, as many as allowed", retry_after_s=RETRY_AFTER_S)
        self._count(self.num_open + 1)

    def leave(self) -> None:
        """A request that was let in is over."""
        self._count(self.num_open - 1)
        if self.is_draining and self.num_open == 0:
            self._empty.set()

    def drain(self) -> None:
        """Refuse all new requests from now on; those inside go on."""
        self.is_draining = True
        if self.num_open == 0:
            self._empty.set()

    async def wait_empty(self) -> None:
        """Return once it drains and no request is open. The caller sets the deadline."""
        await self._empty.wait()

    def _count(self, num_open: int) -> None:
        self.num_open = num_open
        if self.on_count is not None:
            self.on_count(num_open)

    def __repr__(self) -> str:
        state = "draining" if self.is_draining else "open"
        return f"<Gate {state} {self.num_open} of {self.max_open_requests} inside>"
