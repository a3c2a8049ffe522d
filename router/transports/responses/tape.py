"""The events of one response on their way to the archive, many at a time. Knows events as bytes, and how far they are
written; knows nothing of what they say."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from router.transports.chunks import Events
from router.transports.responses.here import AnyArchive
from router.transports.responses.states import ResponsesAway, ResponseState

# Written together: what came in this time, at most so much.
FLUSH_S = 0.02
MAX_EVENTS_AT_ONCE = 512
# What the archive does not take for longer is not kept for who follows: that is told, the response goes on.
MAX_UNSAID_BYTES = 2 * 2**20
AWAY_S = 0.5


@dataclass(eq=False, slots=True)
class Tape:
    """`state()` is the response's now; `on_said` hears that events were written, `on_lost` that it is another's."""

    archive: AnyArchive
    id: str
    fence: int
    state: Callable[[], ResponseState]
    on_said: Callable[[], None]
    on_lost: Callable[[], None]
    num_said: int = 0
    is_broken: bool = False
    _unsaid: deque[bytes] = field(default_factory=deque)
    _num_bytes: int = 0
    _events: Events = field(default_factory=Events)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _is_closed: bool = False
    _told: ResponseState | None = None

    def add(self, payload: bytes) -> None:
        """Whole SSE events; comments among them are not kept."""
        found = [] if self.is_broken else self._events.feed(payload)
        self._unsaid.extend(found)
        self._num_bytes += sum(len(event) for event in found)
        if self._num_bytes > MAX_UNSAID_BYTES:
            self.is_broken = True
            self._unsaid.clear()
        if found:
            self._news.set()

    def tell_state(self) -> None:
        """It may have changed, whatever events there are."""
        if self.state() is not self._told:
            self._news.set()

    def close(self) -> None:
        """No more will be added: `run` ends when all is written."""
        self._is_closed = True
        self._news.set()

    async def run(self) -> None:
        """Until it is closed and written, lost, or cancelled."""
        while not self._is_closed or self._unsaid:
            if not self._unsaid:
                await self._news.wait()
            self._news.clear()
            if self._is_closed and not self._unsaid:
                return
            try:
                if not await self._say():
                    self.on_lost()
                    return
                await asyncio.sleep(FLUSH_S)
            except ResponsesAway:
                if self._is_closed:
                    return  # its end is told with more patience, and with what is left
                await asyncio.sleep(AWAY_S)

    def rest(self) -> list[bytes]:
        """What is not written yet."""
        return list(self._unsaid)

    async def _say(self) -> bool:
        batch = [self._unsaid[i] for i in range(min(len(self._unsaid), MAX_EVENTS_AT_ONCE))]
        self._told = self.state()
        is_ours = await self.archive.say(self.id, self.fence, self._told, self.num_said, batch)
        for event in batch:
            if self._unsaid:  # else it broke meanwhile
                self._unsaid.popleft()
            self._num_bytes -= len(event)
        self.num_said += len(batch)
        self.on_said()
        return is_ours

    def __repr__(self) -> str:
        return f"<Tape {self.id} {self.num_said} said, {len(self._unsaid)} to come>"
