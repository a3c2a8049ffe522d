"""What a worker tells the feed, and what its rooms ask of their siblings. Knows the desk, frames and the feed's
address; knows nothing of what a request is.
"""

import asyncio
import logging
import os
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from router.core import Decision, Demand
from router.replicas.lessons import Lesson
from router.replicas.member import Member
from router.workers import doors, frames
from router.workers.desk import Desk
from router.workers.frames import Cooled, Dispatches, FromFeed, Hello, Learned, Relist, Suspect
from router.workers.line import Line

RECONNECT_S = 0.1
# Dispatches travel in batches: the siblings may know of them a little later.
GATHER_S = 0.01
# A chain that was sent to the same replica so short a time ago needs no telling again.
REPEAT_S = 2.0
MAX_REMEMBERED = 10_000
MAX_UNSENT_HINT_BYTES = 4 * 2**20

Apply = Callable[[FromFeed], None]
log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Sharing:
    """One worker's. `address` is the feed's, `wakers` are an event descriptor for each row of the board."""

    desk: Desk
    number: int
    address: str
    wakers: Sequence[int]
    _line: Line | None = field(default=None, init=False)
    _lost: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _chains: list[tuple[str, bytes]] = field(default_factory=list, init=False)
    _lessons: dict[str, Lesson] = field(default_factory=dict, init=False)
    _told_at: dict[tuple[str, int], float] = field(default_factory=dict, init=False)

    async def follow(self, apply: Apply) -> None:
        """Hear the feed until cancelled, and come back to it whenever it goes: what is known stands meanwhile."""

        def hear(_: Line, payload: bytes) -> None:
            apply(frames.from_feed.decode(payload))

        loop = asyncio.get_running_loop()
        while True:
            self._lost.clear()
            try:
                opened = doors.connect_to_feed(self.address)
            except OSError:
                await asyncio.sleep(RECONNECT_S)
                continue
            _, line = await loop.create_unix_connection(lambda: Line(hear, self._on_lost), sock=opened)
            try:
                self._greet(line)
                await self._lost.wait()
            finally:
                self._line = None
                line.abort()
            await asyncio.sleep(RECONNECT_S)

    @property
    def is_connected(self) -> bool:
        """To the feed's address; a feed that is being started answers later."""
        return self._line is not None and self._line.is_open

    # for the rooms

    def dispatched(self, demand: Demand, decision: Decision, now: float) -> None:
        """A prompt goes to a replica: the siblings will know what is cached there."""
        hashes = demand.prompt.block_hashes
        if not len(hashes):
            return
        key = (decision.replica.id, hashes[-1])
        if now - self._told_at.get(key, -REPEAT_S) < REPEAT_S:
            return
        if len(self._told_at) >= MAX_REMEMBERED:
            self._told_at.clear()
        self._told_at[key] = now
        if not self._chains:
            asyncio.get_running_loop().call_later(GATHER_S, self._tell_dispatches)
        self._chains.append((decision.replica.id, array("Q", hashes).tobytes()))

    def suspected(self, member: Member) -> None:
        self._send(Suspect(member.replica.id))

    def cooled(self, member: Member) -> None:
        self._send(Cooled(member.replica.id, member.breaker.cooling_until))

    def relisted(self, member: Member) -> None:
        """An adapter came or went there: the feed shall ask."""
        self._send(Relist(member.replica.id))

    def learned(self, lessons: Sequence[Lesson]) -> None:
        """What this worker found out about replicas: the siblings may know too little of them. A new feed is told all
        of it again."""
        if len(self._lessons) >= MAX_REMEMBERED:
            self._lessons.clear()
        self._lessons.update({lesson.replica_id: lesson for lesson in lessons})
        self._send(Learned(lessons))

    def count_open(self, num_open: int) -> None:
        if self.desk.row is not None:
            self.desk.row.num_open = num_open

    def count_waiting(self, num_waiting: int) -> None:
        if self.desk.row is not None:
            self.desk.row.num_waiting = num_waiting

    def wake_waiting(self) -> bool:
        """A place may be free here: tell the siblings who wait for one. True where there are any."""
        waiting = self.desk.waiting_siblings()
        for number in waiting:
            os.eventfd_write(self.wakers[number], 1)
        return bool(waiting)

    def _greet(self, line: Line) -> None:
        self._line = line
        line.send(Hello(self.number))
        if self._lessons:
            line.send(Learned(list(self._lessons.values())))

    def _on_lost(self, _: Line) -> None:
        self._lost.set()

    def _send(self, message: Suspect | Cooled | Relist | Learned) -> None:
        if self._line is not None:
            self._line.send(message)

    def _tell_dispatches(self) -> None:
        chains, self._chains = self._chains, []
        if self._line is not None and self._line.num_unsent <= MAX_UNSENT_HINT_BYTES:
            self._line.send(Dispatches(chains))
