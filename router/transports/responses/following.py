"""Follows the events of a response from any number on, whoever runs it, wherever. Knows the archive and numbers of
events; knows nothing of how they are sent on.

Who follows looks again after `POLL_S`, and at once where events were written in this process. So nobody holds a
connection to Redis while nothing happens.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager, suppress
from dataclasses import dataclass, field

import msgspec

from router.errors import PointsmanError
from router.ports import Clock
from router.transports.responses.here import AnyArchive
from router.transports.responses.patience import patiently
from router.transports.responses.states import EventsGone, Told, UnknownResponse

POLL_S = 0.1
HEARTBEAT_S = 15.0
# Redis may be away for so long before who follows is told.
AWAY_S = 15.0
_LAST = (b"response.completed", b"response.incomplete", b"response.failed")


@dataclass(eq=False, slots=True)
class Bell:
    """Wakes those that wait for news of a response, in this process."""

    _waiting: dict[str, set[asyncio.Event]] = field(default_factory=dict)

    def ring(self, id: str) -> None:
        for event in self._waiting.get(id, ()):
            event.set()

    @contextmanager
    def heard(self, id: str) -> Iterator[asyncio.Event]:
        """What is set at each ring from now on."""
        event, waiting = asyncio.Event(), self._waiting.setdefault(id, set())
        waiting.add(event)
        try:
            yield event
        finally:
            waiting.discard(event)
            if not waiting and self._waiting.get(id) is waiting:
                del self._waiting[id]

    def __repr__(self) -> str:
        return f"<Bell {len(self._waiting)} responses are waited for>"


@dataclass(frozen=True, slots=True)
class Following:
    archive: AnyArchive
    bell: Bell
    clock: Clock
    away_s: float = AWAY_S

    async def open(
        self, owner: str, id: str, after: int
    ) -> AbstractAsyncContextManager[AsyncIterator[Sequence[bytes]]]:
        """The events behind number `after` (-1: all), some at a time and none as a sign of life; it ends with the last.

        Raises UnknownResponse, EventsGone or ResponsesAway, here and, but for the first, while they are read."""
        if await self.archive.get(owner, id) is None:
            raise UnknownResponse(id)
        return aclosing(self._follow(id, after, _checked(await self.archive.read(id, after), id, after)))

    async def _follow(self, id: str, after: int, told: Told) -> AsyncGenerator[Sequence[bytes], None]:
        told_at = self.clock()
        with self.bell.heard(id) as news:
            while True:
                if told.events:
                    told_at = self.clock()
                    yield [text for _, text in told.events]
                    after, last = told.events[-1]
                    if is_last(last):
                        return
                elif self.clock() - told_at > HEARTBEAT_S:
                    told_at = self.clock()
                    yield ()
                if not told.events:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(POLL_S):
                            await news.wait()
                news.clear()
                told = _checked(await self._read(id, after), id, after)

    async def _read(self, id: str, after: int) -> Told:
        return await patiently(lambda: self.archive.read(id, after), self.away_s)


def is_last(event: bytes) -> bool:
    """Does it end a stream?"""
    return event.startswith(b'{"type":"') and event[9 : event.index(b'"', 9)] in _LAST


def sse(event: bytes) -> bytes:
    """One of our events in a stream; its type stands first in it."""
    return b"event: %b\ndata: %b\n\n" % (event[9 : event.index(b'"', 9)], event)


def sse_failure(error: PointsmanError, number: int) -> bytes:
    """What ends a stream that cannot go on: an event that is no event of the response."""
    fields = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
    return b"event: error\ndata: %b\n\n" % msgspec.json.encode(fields | {"sequence_number": number})


def _checked(told: Told, id: str, after: int) -> Told:
    if told.events and told.events[0][0] > after + 1:
        raise EventsGone(f"The events of `{id}` up to number {told.events[0][0] - 1} are gone.", param="starting_after")
    if not told.events and not told.is_live:
        raise EventsGone(f"There are no events of `{id}` behind number {after}.", param="starting_after")
    return told
