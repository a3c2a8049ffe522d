"""Virtual time: what is due next happens now. Knows callbacks and their order; knows nothing of what they do.

It is an asyncio event loop without sockets, so that the router's queue waits and times out here as it does in a router.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from itertools import count
from typing import Any, TypeVarTuple, Unpack

_Ts = TypeVarTuple("_Ts")


class VirtualLoop(asyncio.BaseEventLoop):
    """Callbacks due at one time run in the order in which they were asked for. For one thread."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._soon: deque[asyncio.Handle] = deque()
        self._order = count()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failure: BaseException | None = None
        self._is_stopped = False

    def time(self) -> float:
        return self.now

    def at(self, when: float, callback: Callable[..., object], *args: Any) -> None:
        """Like `call_at`, without a handle to cancel it by; cheaper."""
        heapq.heappush(self._due, (when, next(self._order), callback, args))

    def start(self, work: Coroutine[Any, Any, object]) -> None:
        """Run this on its own; what it raises ends the run."""
        task = self.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def run(self) -> None:
        """Until nothing is due any more, or `stop`. Raises what a callback or a task raised."""
        asyncio._set_running_loop(self)
        self._is_stopped = False
        try:
            while not self._is_stopped:
                self._settle()
                if not self._due:
                    return
                self.now, _, callback, args = heapq.heappop(self._due)
                callback(*args)
        finally:
            asyncio._set_running_loop(None)

    def stop(self) -> None:
        self._is_stopped = True

    def call_soon(
        self, callback: Callable[[Unpack[_Ts]], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._soon.append(handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[_Ts]], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self.at(when, self._run, handle)
        return handle

    def get_debug(self) -> bool:
        return False

    def is_closed(self) -> bool:
        return True  # there is nothing to close

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self._failure = context.get("exception") or RuntimeError(context["message"])

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Asked for by `TimerHandle.cancel`: it stays in the heap and is passed over when due."""

    def _settle(self) -> None:
        while self._soon:
            self._run(self._soon.popleft())
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _run(self, handle: asyncio.Handle) -> None:
        if not handle.cancelled():
            handle._run()

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._failure = task.exception()

    def __repr__(self) -> str:
        return f"<VirtualLoop at {self.now:.3f} s, {len(self._due)} due>"
