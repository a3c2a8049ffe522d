"""Trying again for a while what Redis was away for. Knows that it may come back; knows nothing of what is done."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from router.transports.responses.states import ResponsesAway

T = TypeVar("T")

POLL_S = 0.1


async def patiently(step: Callable[[], Awaitable[T]], patience_s: float) -> T:
    """What the step gives, tried again while it is away, not longer than that. Raises ResponsesAway."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    while True:
        try:
            return await step()
        except ResponsesAway:
            if loop.time() >= deadline:
                raise
        await asyncio.sleep(POLL_S)
