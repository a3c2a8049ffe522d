"""The engine in time: one thread steps the core, the event loop gets its outputs.

Knows asyncio, the stepping thread and the clock. Must not know how a batch is computed or what HTTP is.

The thread owns the core. Everything else reaches it as a command that it runs between two steps, so an abort takes
effect at the next step boundary. Outputs cross back once a step, at once: no token waits for another.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, Self, TypeVar, cast

from engine.batch import Batch
from engine.core import EngineCore
from engine.prefixes import Change, Medium, Stored
from engine.sampling import Result
from engine.sequence import FinishReason, Output, Request
from engine.structure import Structure
from engine.text import TextStream

log = logging.getLogger(__name__)

T = TypeVar("T")
Listener = Callable[[list[Change]], object]
RunBatch = Callable[[Batch], Sequence[Result]]


class EngineError(Exception):
    """The engine could not finish a request; `is_stopped` tells that it takes no more of them. `field` of the request
    is to blame, if any is."""

    def __init__(self, message: str, *, is_stopped: bool = False, field: str | None = None) -> None:
        super().__init__(message)
        self.is_stopped = is_stopped
        self.field = field


@dataclass(eq=False, slots=True)
class OutputStream:
    """The outputs of one request. Leaving the `with` block before the last one aborts the request."""

    request_id: str
    _engine: "EngineLoop"
    _arrived: deque[Output] = field(default_factory=deque)
    _waiter: "asyncio.Future[None] | None" = None
    _is_finished: bool = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._engine._close_stream(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Output:
        """Raises EngineError if the step that computed this request failed."""
        if self._is_finished:
            raise StopAsyncIteration
        while not self._arrived:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        output = self._arrived.popleft()
        self._is_finished = output.finish_reason is not None
        if output.error is not None:
            raise EngineError(output.error, is_stopped=self._engine.is_stopped, field=output.faulty_field)
        return output

    def abort(self) -> None:
        """Ends it now, for its reader as for the engine: the last output says that it was aborted."""
        if not self._is_finished:
            self._engine._close_stream(self)
            self._put(_ended(self.request_id, FinishReason.ABORT))

    def _put(self, output: Output) -> None:
        self._arrived.append(output)
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def __repr__(self) -> str:
        return f"<OutputStream {self.request_id} {len(self._arrived)} outputs unread>"


@dataclass(eq=False, slots=True)
class EngineLoop:
    """Steps `core`, computing batches with `run_batch` on a thread of its own. Start it on the event loop that
    reads the streams. `listeners` are told on that thread what each step changed in the KV cache."""

    core: EngineCore
    run_batch: RunBatch
    clock: Callable[[], float] = time.monotonic
    listeners: "list[Listener]" = field(default_factory=list)
    _commands: "SimpleQueue[Callable[[], object] | None]" = field(default_factory=SimpleQueue)
    _streams: dict[str, OutputStream] = field(default_factory=dict)
    _calls: "set[asyncio.Future[Any]]" = field(default_factory=set)
    _event_loop: asyncio.AbstractEventLoop | None = None
    _thread: Thread | None = None
    _stop_reason: str | None = "the engine is not started"

    @property
    def is_stopped(self) -> bool:
        return self._stop_reason is not None

    def start(self) -> None:
        self._event_loop = asyncio.get_running_loop()
        self._stop_reason = None
        self._thread = Thread(target=self._run, name="engine-steps", daemon=True)
        self._thread.start()

    def submit(
        self, request: Request, text: TextStream | None = None, structure: Structure | None = None
    ) -> OutputStream:
        """Queues the request. Raises EngineError when stopped or asleep, ValueError if it can never fit the KV cache,
        its adapter is not loaded, or its id is in use."""
        if self._stop_reason is not None:
            raise EngineError(self._stop_reason, is_stopped=True)
        if self.core.is_asleep:
            raise EngineError("the engine sleeps; POST /wake_up", is_stopped=True)
        if request.id in self._streams:
            raise ValueError(f"a request {request.id} is open already")
        # What it names now is what it gets, though it may be unloaded before the next step.
        adapter = self.core.scheduler.check(request)
        stream = OutputStream(request.id, self)
        self._streams[request.id] = stream
        self._commands.put(partial(self.core.add, request, text, structure, adapter))
        return stream

    async def call(self, function: Callable[[], T]) -> T:
        """Runs it on the stepping thread, between two steps. Raises what it raises, EngineError when stopped."""
        if self._stop_reason is not None:
            raise EngineError(self._stop_reason, is_stopped=True)
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._calls.add(answer)
        try:
            self._commands.put(partial(self._answer, answer, function))
            return await answer
        finally:
            self._calls.discard(answer)

    async def follow(self, listener: Listener) -> list[Stored]:
        """From now on `listener` is told each change, on the stepping thread; returns all that is held before."""
        return await self.call(partial(self._begin_to_follow, listener))

    def unfollow(self, listener: Listener) -> None:
        """From some step boundary on it is told no more."""
        self._commands.put(partial(self._end_following, listener))

    def stop(self, reason: str) -> None:
        """Ends all streams with an error and lets the thread go after the step it is in."""
        if self._stop_reason is None:
            self._commands.put(None)
        self._end_all(reason)

    def join(self, timeout_s: float) -> bool:
        """Blocks until the thread is gone; False if it is still computing."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return self._thread is None or not self._thread.is_alive()

    def _close_stream(self, stream: OutputStream) -> None:
        if self._streams.pop(stream.request_id, None) is not None:
            self._commands.put(partial(self.core.abort, stream.request_id))

    def _answer(self, answer: "asyncio.Future[T]", function: Callable[[], T]) -> None:
        try:
            result = function()
        except Exception as error:
            self._to_event_loop(partial(_settle, answer, error=error))
        else:
            self._to_event_loop(partial(_settle, answer, result))

    def _run(self) -> None:
        try:
            while self._obey_commands():
                self._tell_changes()
                if self.core.has_work:
                    self._step()
                    self._tell_changes()
        except Exception:
            log.exception("the engine's loop broke; it takes no more requests")
            self._to_event_loop(partial(self._end_all, "the engine broke, see its log"))

    def _obey_commands(self) -> bool:
        """Runs what is queued, waiting for the first command when there is nothing to compute."""
        is_idle = not self.core.has_work
        while is_idle or not self._commands.empty():
            command = self._commands.get()
            if command is None:
                return False
            command()
            is_idle = False
        return True

    def _step(self) -> None:
        batch = self.core.plan()
        try:
            results = self.run_batch(batch)
            outputs = self.core.commit(batch, results, self.clock())
        except Exception as error:
            log.exception("a step failed; its %d requests are ended", len(batch.chunks))
            outputs = self.core.fail(batch, f"the engine failed to compute this request: {error}")
        if outputs:
            self._to_event_loop(partial(self._deliver, outputs))

    def _begin_to_follow(self, listener: Listener) -> list[Stored]:
        # What the others have still to be told of is part of what is held.
        self._tell_changes()
        pool = self.core.scheduler.pool
        pool.records_changes = True
        self.listeners.append(listener)
        return [Stored([prefix], medium) for medium in Medium for prefix in pool.held(medium)]

    def _end_following(self, listener: Listener) -> None:
        if listener in self.listeners:
            self.listeners.remove(listener)
        if not self.listeners:
            self.core.scheduler.pool.records_changes = False
            self.core.take_changes()

    def _tell_changes(self) -> None:
        if self.core.scheduler.pool.records_changes and (changes := self.core.take_changes()):
            for listener in self.listeners:
                listener(changes)

    def _to_event_loop(self, callback: Callable[[], object]) -> None:
        assert self._event_loop is not None
        # A closed event loop has nobody left to tell.
        with suppress(RuntimeError):
            self._event_loop.call_soon_threadsafe(callback)

    def _deliver(self, outputs: list[Output]) -> None:
        for output in outputs:
            stream = self._streams.get(output.request_id)
            if stream is not None:
                stream._put(output)

    def _end_all(self, reason: str) -> None:
        self._stop_reason = reason
        self._deliver([_ended(request_id, FinishReason.ERROR, reason) for request_id in self._streams])
        for answer in self._calls:
            _settle(answer, error=EngineError(reason, is_stopped=True))

    def __repr__(self) -> str:
        state = "RUNNING" if self._stop_reason is None else f"STOPPED ({self._stop_reason})"
        return f"<EngineLoop {state} {len(self._streams)} streams {self.core!r}>"


def _ended(request_id: str, reason: FinishReason, error: str | None = None) -> Output:
    return Output(request_id, (), "", 0, 0, finish_reason=reason, error=error)


def _settle(answer: "asyncio.Future[T]", result: T | None = None, *, error: Exception | None = None) -> None:
    """On the event loop. Whoever waited may have given up."""
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(cast(T, result))
