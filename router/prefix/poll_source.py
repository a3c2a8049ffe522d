"""KV events of TensorRT-LLM, which are asked for: each answer empties the engine's buffer. Knows numbers and pages of
JSON, and how often to ask; what an event says is the follower's."""

import asyncio
from dataclasses import dataclass, field

import aiohttp

from router.prefix.events import BadEvents, from_polled
from router.prefix.follower import Follower

POLL_INTERVAL_S = 0.1
# After a failure.
MAX_INTERVAL_S = 5.0

_TIMEOUT = aiohttp.ClientTimeout(total=5.0)


@dataclass(eq=False, slots=True)
class PollSource:
    """Whoever else asks the same engine takes events away from us: a number that is missing clears the replica."""

    url: str
    api_key: str | None = None
    interval_s: float = POLL_INTERVAL_S
    _wanted: int | None = field(default=None, init=False)
    _is_lost: bool = field(default=False, init=False)

    def begin_anew(self) -> None:
        """The replica was lost."""
        self._is_lost = True

    async def follow(self, follower: Follower) -> None:
        follower.reset("it begins")
        pause_s, headers = self.interval_s, {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        async with aiohttp.ClientSession(headers=headers, timeout=_TIMEOUT) as session:
            while True:
                try:
                    async with session.get(self.url, raise_for_status=True) as response:
                        page = await response.read()
                except (aiohttp.ClientError, TimeoutError) as error:
                    follower.lose(f"{self.url}: {error!r}")
                    self._wanted, pause_s = None, min(2 * pause_s, MAX_INTERVAL_S)
                else:
                    self.take(page, follower)
                    pause_s = self.interval_s
                await asyncio.sleep(pause_s)

    def take(self, page: bytes, follower: Follower) -> None:
        """One answer. Raises Distrust."""
        if self._is_lost:
            self._is_lost, self._wanted = False, None
            follower.reset("the replica was lost")
        try:
            for number, events in from_polled(page):
                self._count(number, follower)
                follower.apply(events)
        except BadEvents as error:
            follower.bad(str(error))
        if self._wanted is None:
            follower.synced(is_whole=False, reason="what was before is not told")

    def _count(self, number: int, follower: Follower) -> None:
        if number == 0:
            follower.reset("the engine began")
            follower.synced(is_whole=True)
        elif number != self._wanted:
            follower.reset("events were lost")
            follower.synced(is_whole=False, reason="events were lost, and there is no replay")
        self._wanted = number + 1

    def __repr__(self) -> str:
        return f"<PollSource wants {self._wanted}>"
