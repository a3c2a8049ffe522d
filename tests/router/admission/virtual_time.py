"""An event loop whose time jumps to the next timer instead of waiting for it: timers fire in order, at once, and a
test in which nothing can ever happen again fails instead of hanging."""

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.now = 100.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self.now


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everybody waits and no timer is set")
        self._loop.now += max(0.0, timeout)
        return super().select(0)


def in_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on a loop of its own, in virtual time."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(test(*arguments, **named))

    return run


async def settle(num_turns: int = 3) -> None:
    """Let everything that is ready run; no time passes."""
    for _ in range(num_turns):
        await asyncio.sleep(0)
