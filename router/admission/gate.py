"""The first check, before any work is done for a request. Knows how many requests are open and whether we drain; knows
nothing of prompts, pools or replicas, and never waits."""

import asyncio
from dataclasses import dataclass, field
from types import TracebackType

from router.core import Request
from router.errors import Draining, Overloaded

# Both states are expected to be over, or another router to have taken over, within a second.
RETRY_AFTER_S = 1.0


@dataclass(eq=False, slots=True)
class Gate:
    """Bounds the requests open in this process, and closes for good when it drains."""

    max_open_requests: int
    num_open: int = field(default=0, init=False)
    is_draining: bool = field(default=False, init=False)
    _empty: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def __post_init__(self) -> None:
        if self.max_open_requests < 1:
            raise ValueError("max_open_requests must be at least 1")
        self._empty.set()

    def enter(self, request: Request) -> "Ticket":
        """Let a request in until its ticket is left. Raises Draining or Overloaded; nothing is counted then."""
        if self.is_draining:
            raise Draining("this router is shutting down and takes no new requests", retry_after_s=RETRY_AFTER_S)
        if self.num_open >= self.max_open_requests:
            raise Overloaded(f"{self.num_open} requests are open, as many as allowed", retry_after_s=RETRY_AFTER_S)
        self.num_open += 1
        self._empty.clear()
        return Ticket(self, request.id)

    def drain(self) -> None:
        """Refuse all new requests from now on; those inside go on."""
        self.is_draining = True

    async def wait_empty(self) -> None:
        """Return once no request is open. The caller sets the deadline."""
        await self._empty.wait()

    def left(self) -> None:
        """A ticket tells that its request is over."""
        self.num_open -= 1
        if self.num_open == 0:
            self._empty.set()

    def __repr__(self) -> str:
        state = "draining" if self.is_draining else "open"
        return f"<Gate {state} {self.num_open} of {self.max_open_requests} inside>"


@dataclass(eq=False, slots=True)
class Ticket:
    """One request's stay inside: left exactly once, at the latest by the end of the `with` block."""

    gate: Gate
    request_id: str
    is_left: bool = field(default=False, init=False)

    def leave(self) -> None:
        """Raises RuntimeError on a second call: the count would go wrong."""
        if self.is_left:
            raise RuntimeError(f"{self!r} was left before")
        self.is_left = True
        self.gate.left()

    def __enter__(self) -> "Ticket":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if not self.is_left:
            self.leave()

    def __repr__(self) -> str:
        return f"<Ticket {self.request_id} {'left' if self.is_left else 'inside'}>"
