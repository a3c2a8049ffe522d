"""KV changes from the stepping thread to a reader on the event loop, after all that was held when it began.

Knows the engine's loop. Must not know what the changes are told as.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from engine.loop import EngineLoop
from engine.prefixes import Change, Stored

# A reader that is so far behind begins anew: that is cheaper than to remember more.
_MOST_WAITING = 100_000


class TooSlow(Exception):
    """The reader fell behind; begin anew."""


@asynccontextmanager
async def follow(engine: EngineLoop) -> AsyncIterator[tuple[list[Stored], AsyncIterator[Change]]]:
    """All that is held, and what changes from then on, for as long as the block lasts. Raises EngineError when stopped;
    the changes raise TooSlow."""
    waiting = _Waiting(asyncio.get_running_loop())
    held = await engine.follow(waiting.put)
    try:
        yield _chains(held), waiting.taken()
    finally:
        engine.unfollow(waiting.put)


@dataclass(eq=False, slots=True)
class _Waiting:
    event_loop: asyncio.AbstractEventLoop
    _changes: deque[Change] = field(default_factory=deque)
    _is_there: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, changes: list[Change]) -> None:
        """On the stepping thread."""
        if len(self._changes) <= _MOST_WAITING:
            self._changes.extend(changes)
            self.event_loop.call_soon_threadsafe(self._is_there.set)

    async def taken(self) -> AsyncIterator[Change]:
        while True:
            await self._is_there.wait()
            self._is_there.clear()
            if len(self._changes) > _MOST_WAITING:
                raise TooSlow("the reader of KV events is too slow; subscribe again")
            while self._changes:
                yield self._changes.popleft()


def _chains(held: list[Stored]) -> list[Stored]:
    """The same with each run of a parent and its only next child as one."""
    chains: list[Stored] = []
    for stored in held:
        last = chains[-1] if chains else None
        if last is not None and last.medium is stored.medium and last.prefixes[-1] is stored.prefixes[0].parent:
            last.prefixes.extend(stored.prefixes)
        else:
            chains.append(stored)
    return chains
