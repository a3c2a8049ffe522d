"""The first check, before any work is done for a request. Knows how many requests are open, whether we drain, and who
may do what; knows nothing of prompts, pools or replicas, and never waits."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from router.admission.callers import Callers
from router.admission.passes import Pass
from router.admission.terms import terms
from router.core import Request, Usage
from router.errors import Draining, Overloaded
from router.ports import Clock

# Both states are expected to be over, or another router to have taken over, within a second.
RETRY_AFTER_S = 1.0


@dataclass(eq=False, slots=True)
class Gate:
    """Bounds the open requests, lets in whom a key lets in, and closes for good when it drains. `is_busy(model)`: have
    its replicas more to do than they can? Rates hold then.

    Where several processes share the bound, `elsewhere()` counts the requests open in the others, and `on_count(num)`
    is told of ours: two that enter in the same moment may exceed it by one each.
    """

    max_open_requests: int
    elsewhere: Callable[[], int] | None = None
    on_count: Callable[[int], None] | None = None
    callers: Callers = field(default_factory=Callers)
    is_busy: Callable[[str], bool] = lambda _: False
    clock: Clock = time.monotonic
    unix_clock: Callable[[], float] = time.time
    num_open: int = field(default=0, init=False)
    is_draining: bool = field(default=False, init=False)
    _empty: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def __post_init__(self) -> None:
        if self.max_open_requests < 1:
            raise ValueError("max_open_requests must be at least 1")

    def enter(self, request: Request) -> Pass:
        """Let a request in; the caller owes one `leave`, and where the pass has accounts, must await its `enter`.
        Raises Draining, Overloaded, or what is wrong with its key, its class or its model; then nothing is counted."""
        if self.is_draining:
            raise Draining("this router is shutting down and takes no new requests", retry_after_s=RETRY_AFTER_S)
        num_open = self.num_open if self.elsewhere is None else self.num_open + self.elsewhere()
        if num_open >= self.max_open_requests:
            raise Overloaded(f"{num_open} requests are open, as many as allowed", retry_after_s=RETRY_AFTER_S)
        if request.standing is not None:  # settled when the job was submitted
            self._count(self.num_open + 1)
            return Pass(request.standing)
        asked = request.asked or terms(request.headers)
        caller = self.callers.identify(asked.credential, self.unix_clock())
        caller.check_model(request.model)
        passed = Pass(caller.standing(request, asked.tenant), caller.key.id if caller.key is not None else None)
        if caller.accounts:
            passed.accounts, passed.clock, passed.unix_clock = caller.accounts, self.clock, self.unix_clock
            passed.is_busy = lambda: self.is_busy(request.model)
            passed.refill = self.callers.refill
        self._count(self.num_open + 1)
        return passed

    def leave(self, passed: Pass, usage: Usage | None = None) -> None:
        """A request that was let in is over; `usage` is what it took, as far as that is known."""
        if passed.accounts:
            passed.leave(usage)
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
