"""The feed: the one process of a host that finds replicas, probes them, reads their load and hears what they have
cached, and tells the workers.

Knows the registry, the board's columns and frames; serves no request. It never waits for a worker: one that does not
read is cut off, and gets a fresh snapshot when it comes back. What workers sent where it only passes on.
"""

import asyncio
import logging
import socket
import time
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from router.config import Settings
from router.core import Pool, Replica
from router.prefix.caches import Caches
from router.prefix.changes import Change, everything
from router.prefix.follower import FeedStatus
from router.prefix.index import BlockIndex
from router.prefix.indexer import match_in
from router.replicas.discovery.places import open_places
from router.replicas.discovery.static import parse_replica
from router.replicas.identify import TokenizerDocument
from router.replicas.lessons import Lesson
from router.replicas.member import Member
from router.replicas.registry import Registry
from router.replicas.sighting import Sighting, sight
from router.workers import frames, warming
from router.workers.board import Board
from router.workers.columns import Columns
from router.workers.desk import Desk
from router.workers.frames import (
    Delta,
    Dispatches,
    Document,
    Drain,
    Drained,
    Export,
    Exported,
    Fed,
    Find,
    Found,
    Hello,
    Learned,
    Recall,
    Relist,
    Snapshot,
    Suspect,
    Told,
)
from router.workers.line import Line

# News of the same moment travel together.
GATHER_S = 0.002
# A worker that leaves more than this unread is cut off; of dispatches, which are only hints, it misses some before.
MAX_UNSENT_BYTES = 32 * 2**20
MAX_UNSENT_HINT_BYTES = 4 * 2**20
CHAINS_A_FRAME = 200
# What a worker that comes later is told of dispatches before it.
MAX_KEPT_BYTES = 8 * 2**20

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Dispatched:
    """The dispatches of late, as frames, oldest first, for those who come later."""

    max_bytes: int
    frames: deque[bytes] = field(default_factory=deque)
    num_bytes: int = 0

    def keep(self, frame: bytes) -> None:
        self.frames.append(frame)
        self.num_bytes += len(frame)
        while self.num_bytes > self.max_bytes:
            self.num_bytes -= len(self.frames.popleft())


class Feed:
    """`listener` is where workers connect; they name themselves by their row on the board."""

    def __init__(self, settings: Settings, board: Board, listener: socket.socket, drained: Sequence[str]) -> None:
        self._listener = listener
        # The clock goes on when this process is started again, and so do the sequence numbers.
        self._sequence = time.monotonic_ns()
        self._columns = Columns(board, self._sequence)
        self._desk = Desk(board, None)
        self._caches = Caches(
            BlockIndex(settings.index_bytes),
            has_tokenizer=lambda _: True,
            on_changes=self._told,
            on_status=self._fed,
        )
        self._registry = self._new_registry(settings)
        self._drained = set(drained)
        self._siblings = [parse_replica(text) for text in settings.warm_from]
        self._workers: dict[Line, int | None] = {}
        self._known: dict[str, Sighting] = {}
        self._documents: dict[str, Document] = {}
        self._dispatched = Dispatched(MAX_KEPT_BYTES)
        self._changed: dict[str, Member] = {}
        self._lessons: dict[str, Lesson] = {}
        self._gone: list[str] = []
        self._new_documents: list[Document] = []
        self._changes: list[tuple[str, Sequence[Change]]] = []
        self._news = asyncio.Event()
        self._has_begun = False

    async def run(self) -> None:
        """Watch and tell until cancelled."""
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(lambda: Line(self._hear, self._left), sock=self._listener)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._registry.run())
                group.create_task(self._caches.listen())
                group.create_task(self._warm_up())
                group.create_task(self._tell_forever())
        finally:
            server.close()
            for worker in list(self._workers):
                worker.abort()

    def drain(self, order: Drain, answer: Line) -> None:
        """The workers are told before the answer goes out."""
        self._drained.add(order.replica_id) if order.on else self._drained.discard(order.replica_id)
        self._obey(order.replica_id, order.on)
        self._tell()
        answer.send(Drained(self._sequence))

    def find(self, asked: Find, answer: Line) -> None:
        """Who holds these blocks, as far as replicas told."""
        answer.send(Found(asked.number, *match_in(self._caches.index, array("Q", asked.blocks))))

    def export(self, asked: Export, answer: Line) -> None:
        """What replicas told, and after it what workers sent of late."""
        told = warming.export(self._caches.index, list(self._known))
        sent = [chain for frame in self._dispatched.frames for chain in _chains_in(frame)]
        answer.send(Exported(asked.number, warming.pack([*msgspec.msgpack.decode(told), *sent])))

    def recall(self, asked: Recall, answer: Line) -> None:
        """What workers have learned of replicas."""
        answer.send(Exported(asked.number, warming.pack_lessons(self._lessons.values())))

    async def _warm_up(self) -> None:
        """What siblings on other hosts say is passed on as what workers send."""
        lessons = await warming.ask_lessons(self._siblings)
        if lessons:
            self._keep(lessons)
            self._send_all(frames.pack(Learned(lessons)))
        chains = await warming.ask(self._siblings)
        for at in range(0, len(chains), CHAINS_A_FRAME):
            self._pass_on(frames.pack(Dispatches(chains[at : at + CHAINS_A_FRAME])), None)

    def _new_registry(self, settings: Settings) -> Registry:
        return Registry(
            open_places(settings.replica).discovery,
            on_change=lambda: None,
            on_lost=self._lost,
            on_identified=self._identified,
            on_seen=self._seen,
            before_report=lambda: self._desk.look(time.monotonic()),
            probe_interval_s=settings.probe_interval_s,
            load_interval_s=settings.load_interval_s,
            breaker_faults=settings.breaker_faults,
            breaker_open_s=settings.breaker_open_s,
        )

    # from the registry

    def _seen(self, member: Member) -> None:
        id = member.replica.id
        if member not in self._registry.members():
            self._forget(id)
        else:
            self._changed[id] = member
            if id in self._drained:
                self._obey(id, True)
        self._news.set()

    def _forget(self, id: str) -> None:
        """Its column may go to another once all workers have taken in the next frame."""
        self._changed.pop(id, None)
        self._gone.append(id)
        sighting = self._known.pop(id, None)
        if sighting is not None and sighting.column is not None:
            self._desk.unseat(sighting.column)
        self._lessons.pop(id, None)
        self._columns.retire(id, self._sequence + 1)
        self._caches.feeds.leave(id)

    def _lost(self, id: str) -> None:
        """In the stream of dispatches, so that it comes after what was sent there before it was lost."""
        self._caches.lost(id)
        self._lessons.pop(id, None)
        self._tell_changes()
        self._pass_on(frames.pack(Dispatches([(id, b"")])), None)

    def _told(self, id: str, changes: Sequence[Change]) -> None:
        """Of the same moment, they travel together."""
        if not self._changes:
            asyncio.get_running_loop().call_later(GATHER_S, self._tell_changes)
        self._changes.append((id, changes))

    def _tell_changes(self) -> None:
        changes, self._changes = self._changes, []
        if changes:
            self._tell()  # of a replica that they do not know they would take nothing in
            self._send_all(frames.pack(Told(changes)))

    def _fed(self, id: str, status: FeedStatus) -> None:
        self._tell_changes()
        self._send_all(frames.pack(Fed(id, status)))

    def _identified(self, replica: Replica, pool: Pool, fields: TokenizerDocument | None) -> None:
        self._caches.identified(replica, pool)
        if fields is not None and pool.model not in self._documents:
            document = self._documents[pool.model] = Document(pool.model, fields)
            self._new_documents.append(document)

    def _obey(self, id: str, must_drain: bool) -> None:
        try:
            self._registry.drain(id) if must_drain else self._registry.undrain(id)
        except LookupError:
            log.info("%s is to be drained, and is not there", id)

    # to the workers

    async def _tell_forever(self) -> None:
        while True:
            await self._news.wait()
            await asyncio.sleep(GATHER_S)
            self._tell()

    def _tell(self) -> None:
        self._news.clear()
        if not self._registry.has_listed:
            return  # a snapshot of nothing would take the workers' replicas away
        if not self._has_begun:
            ids = [member.replica.id for member in self._registry.members()]
            self._columns.retire_all_but(ids, self._sequence + 1)
        sightings = [self._sight(member) for member in self._changed.values()]
        new = [sighting for sighting in sightings if sighting != self._known.get(sighting.id)]
        gone, documents = self._gone, self._new_documents
        self._changed, self._gone, self._new_documents = {}, [], []
        self._known.update({sighting.id: sighting for sighting in new})
        if new or gone or documents:
            self._sequence += 1
            self._send_all(frames.pack(Delta(self._sequence, new, gone, documents)))
        if not self._has_begun:
            self._begin()

    def _begin(self) -> None:
        """The first list is complete: greet those who came before it."""
        self._has_begun = True
        for worker in self._greeted():
            self._greet(worker)

    def _sight(self, member: Member) -> Sighting:
        id = member.replica.id
        before = self._known.get(id)
        column = before.column if before is not None else self._columns.assign(id)
        if before is None and column is not None:
            self._desk.seat(member.replica, column)
        return sight(member, column)

    def _greet(self, worker: Line) -> None:
        snapshot = Snapshot(self._sequence, list(self._known.values()), list(self._documents.values()))
        worker.send(snapshot)
        if self._lessons:
            worker.send(Learned(list(self._lessons.values())))
        for kept in self._dispatched.frames:
            worker.send_frame(kept)
        self._tell_changes()  # what the index has already is not told twice
        for id, status in self._caches.statuses().items():
            worker.send(Told([(id, everything(self._caches.index, id))]))
            worker.send(Fed(id, status))

    def _send_all(self, frame: bytes, sender: Line | None = None) -> None:
        for worker in self._greeted():
            if worker is sender:
                continue
            if worker.num_unsent > MAX_UNSENT_BYTES:
                log.warning("worker %s does not read what the feed sends; it is cut off", self._workers[worker])
                worker.abort()
            else:
                worker.send_frame(frame)

    def _pass_on(self, frame: bytes, sender: Line | None) -> None:
        self._dispatched.keep(frame)
        for worker in self._greeted():
            if worker is not sender and worker.num_unsent <= MAX_UNSENT_HINT_BYTES:
                worker.send_frame(frame)

    def _greeted(self) -> list[Line]:
        return [worker for worker, number in self._workers.items() if number is not None] if self._has_begun else []

    # from the workers

    def _hear(self, worker: Line, payload: bytes) -> None:
        message = frames.to_feed.decode(payload)
        if isinstance(message, Hello):
            self._meet(worker, message)
        elif worker not in self._workers:
            raise ValueError("a worker must say hello first")
        elif isinstance(message, Dispatches):
            self._pass_on(frames.frame(payload), worker)
        elif isinstance(message, Learned):
            self._keep(message.lessons)
            self._send_all(frames.frame(payload), worker)
        elif isinstance(message, Suspect):
            self._registry.suspect(message.replica_id)
        elif isinstance(message, Relist):
            self._relist(message.replica_id)
        else:
            self._registry.cool(message.replica_id, message.until)

    def _keep(self, lessons: Sequence[Lesson]) -> None:
        """The best of each replica, for workers that come later."""
        now = time.monotonic()
        for lesson in lessons:
            id = lesson.replica_id
            if (id in self._known or not self._has_begun) and lesson.beats(self._lessons.get(id), now):
                self._lessons[id] = lesson

    def _relist(self, replica_id: str) -> None:
        for member in self._registry.members():
            if member.replica.id == replica_id:
                member.relist_soon()

    def _meet(self, worker: Line, hello: Hello) -> None:
        if hello.version != frames.VERSION or not worker.peer_is_us():
            raise ValueError(f"hello of version {hello.version}, or of another user")
        self._workers[worker] = hello.number
        if self._has_begun:
            self._greet(worker)

    def _left(self, worker: Line) -> None:
        self._workers.pop(worker, None)

    def __repr__(self) -> str:
        return f"<Feed {len(self._known)} replicas, {len(self._workers)} workers>"


def _chains_in(frame: bytes) -> Sequence[tuple[str, bytes]]:
    message = frames.from_feed.decode(frame[frames.LENGTH_BYTES :])
    return [(id, chain) for id, chain in message.chains if chain] if isinstance(message, Dispatches) else []
