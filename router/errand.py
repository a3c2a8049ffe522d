"""One request's coroutine, run without a task for as long as it waits for nothing but the end of its answer.

Knows coroutines and tasks; knows nothing of requests. Most requests begin in the callback that read them and end in the
one that read their answer: a task would cost each of them two more turns of the loop. What waits for anything else
(tokens, a place, a connection) gets a task then, and keeps it.
"""

import asyncio
import types
from collections.abc import Coroutine, Generator
from enum import Enum
from typing import Any, Self


class State(Enum):
    """Where an errand stands: RUNNING -> WAITING -> RUNNING -> ... -> ENDED, or by way of its task."""

    RUNNING = "in a step of its own"
    WAITING = "waits for its ending, without a task"
    GETTING_TASK = "its task has not begun"
    IN_TASK = "in a task"
    ENDED = "done"


class Ending(asyncio.Future[None]):
    """What an errand can wait for without a task. Settled once, by `settle`."""

    __slots__ = ("errand",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self.errand: Errand | None = None

    def settle(self, error: BaseException | None = None) -> None:
        """Go on with what waits for it, in this very call where that has no task. Later calls do nothing."""
        if self.done():
            return
        if error is None:
            self.set_result(None)
        else:
            self.set_exception(error)
        if (errand := self.errand) is not None:
            self.errand = None
            errand.step()


class Errand:
    """Owner of a coroutine and, once it has one, of its task. The coroutine may raise CancelledError only.

    Until it has waited once for something else it may run inside another task: what needs one of its own (a timeout)
    must await `own_task` first.
    """

    __slots__ = ("_coroutine", "_ended", "_ending", "_must_cancel", "_task", "state")

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.state = State.RUNNING
        self._coroutine = coroutine
        self._must_cancel = False
        self._ending: Ending | None = None
        self._task: asyncio.Task[None] | None = None
        self._ended: asyncio.Future[None] | None = None

    def step(self) -> Self:
        """Run it up to where it must wait next."""
        self.state = State.RUNNING
        try:
            awaited = self._coroutine.send(None)
            while self._must_cancel:
                self._must_cancel = False
                awaited = self._coroutine.throw(asyncio.CancelledError())
        except (StopIteration, asyncio.CancelledError):
            self._end()
        except BaseException:
            self._end()
            raise  # a fault of ours: whoever took the step hears of it
        else:
            self._wait_for(awaited)
        return self

    def cancel(self) -> None:
        """Raise CancelledError in it, where it waits: at once if it has no task."""
        if self.state is State.IN_TASK and self._task is not None:
            self._task.cancel()
        elif self.state is State.WAITING and self._ending is not None:
            self._ending.errand = None
            self._ending.cancel()
            self.step()
        elif self.state is not State.ENDED:
            self._must_cancel = True  # it hears of it where it waits next

    async def wait(self) -> None:
        """To its end. Who is cancelled here cancels the errand, waits all the same, and is cancelled then."""
        was_cancelled = False
        while self.state is not State.ENDED:
            if self._ended is None:
                self._ended = asyncio.get_running_loop().create_future()
            try:
                await asyncio.shield(self._ended)
            except asyncio.CancelledError:
                was_cancelled = True
                self.cancel()
        if was_cancelled:
            raise asyncio.CancelledError

    def _wait_for(self, awaited: Any) -> None:
        if type(awaited) is Ending:
            awaited._asyncio_future_blocking = False  # as a task does with what it is given
            awaited.errand, self._ending = self, awaited
            self.state = State.WAITING
        else:
            self.state = State.GETTING_TASK
            self._task = asyncio.get_running_loop().create_task(self._go_on(awaited))

    async def _go_on(self, awaited: Any) -> None:
        self.state = State.IN_TASK
        try:
            await self._rest(awaited)
        finally:
            self._end()

    @types.coroutine
    def _rest(self, awaited: Any) -> Generator[Any, Any, None]:
        """The rest of the coroutine: its task awaits for it what it asks for."""
        error: BaseException | None = asyncio.CancelledError() if self._must_cancel else None
        while True:
            if error is None and awaited is not _OWN_TASK:
                try:
                    yield awaited
                except BaseException as thrown:
                    error = thrown
            try:
                awaited = self._coroutine.send(None) if error is None else self._coroutine.throw(error)
            except StopIteration:
                return
            error = None

    def _end(self) -> None:
        self.state = State.ENDED
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def __repr__(self) -> str:
        return f"<Errand {self.state.name}>"


_OWN_TASK = object()


@types.coroutine
def own_task() -> Generator[Any, None, None]:
    """Awaited in an errand: from here on it is in a task of its own."""
    yield _OWN_TASK
