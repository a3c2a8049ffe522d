"""Lessons between hosts, through Redis: what this router has learned is put there, and what it knows too little of is
looked up. Knows lessons and the store; decides neither what is worth telling nor what is believed.

Each replica has one key, which goes when nobody has learned of it for a day. Two routers that write at once lose one
lesson, which is told again.
"""

import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import urlsplit

import msgspec

from router.ports import Clock
from router.replicas.lessons import MAX_AGE_S, Lesson, Lessons
from router.replicas.member import Member
from router.store import names
from router.store.connection import Store
from router.store.errors import StoreAway

# Of one round; the rest waits for the next.
MOST_A_ROUND = 500

_decoder = msgspec.msgpack.Decoder(Lesson)


@dataclass(eq=False, slots=True)
class Exchange:
    """`tell` what is to be put there, `round` every few seconds. In the store times are unix seconds."""

    store: Store
    lessons: Lessons
    clock: Clock = time.monotonic
    unix: Callable[[], float] = time.time
    host: str = field(default_factory=socket.gethostname)
    _untold: dict[str, Lesson] = field(default_factory=dict, init=False)

    def tell(self, lessons: Iterable[Lesson]) -> None:
        """The newest of each replica goes out with the next round."""
        self._untold.update({lesson.replica_id: lesson for lesson in lessons})

    async def round(self) -> None:
        """Nothing happens while the store is away."""
        if not self.store.is_up:
            return
        members = {member.replica.id: member for member in self.lessons.members()}
        untold = {id: lesson for id, lesson in self._untold.items() if id in members}
        wanted = {member.replica.id: member for member in self.lessons.wanting()}
        asked = [members[id] for id in list(untold | wanted)[:MOST_A_ROUND]]
        self._untold = untold
        if not asked:
            return
        try:
            found = await self._read(asked)
            self.lessons.take([found[id] for id in wanted if id in found], self.clock())
            for member in asked:
                lesson = self._untold.pop(member.replica.id, None)
                if lesson is not None and lesson.beats(found.get(lesson.replica_id), self.clock()):
                    await self._write(member, lesson)
        except StoreAway:
            return  # who comes back finds what is told again

    async def _read(self, members: Sequence[Member]) -> dict[str, Lesson]:
        documents = await self.store.call("MGET", *[self._key(member) for member in members])
        found: dict[str, Lesson] = {}
        for member, document in zip(members, documents, strict=True):
            if document is None:
                continue
            try:
                lesson = _decoder.decode(document)
            except msgspec.DecodeError as error:
                self.lessons.refuse(f"what the store holds of {member.replica.id} is no lesson: {error}")
            else:
                found[lesson.replica_id] = lesson.moved(self.clock() - self.unix())
        return found

    async def _write(self, member: Member, lesson: Lesson) -> None:
        document = msgspec.msgpack.encode(lesson.moved(self.unix() - self.clock()))
        await self.store.call("SET", self._key(member), document, "EX", round(MAX_AGE_S))

    def _key(self, member: Member) -> str:
        """A replica on this host is another one than the same address on the next."""
        replica = member.replica
        where = f"{self.host}/" if is_of_this_host(replica.spec.url) else ""
        return names.lesson(replica.models[0], where + replica.id)

    def __repr__(self) -> str:
        return f"<Exchange {len(self._untold)} untold, {self.lessons!r}>"


def is_of_this_host(url: str) -> bool:
    """Does the same URL mean another machine elsewhere?"""
    name = urlsplit(url).hostname or ""
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")
