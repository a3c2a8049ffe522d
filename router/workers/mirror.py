"""What the feed says, brought into this worker's rooms: replicas into the registry and onto the desk, what replicas
tell and siblings sent into the caches. Knows messages and those rooms; knows no sockets.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from router.core import Replica
from router.prefix.caches import Caches
from router.replicas.lessons import Lesson
from router.replicas.registry import Registry
from router.replicas.sighting import Sighting
from router.spec import ReplicaSpec
from router.workers.desk import Desk
from router.workers.frames import Delta, Dispatches, Document, Fed, FromFeed, Learned, Snapshot, Told
from router.workers.intake import Intake


@dataclass(eq=False, slots=True)
class Mirror:
    """Applies the feed's messages, in their order."""

    registry: Registry
    desk: Desk
    caches: Caches
    clock: Callable[[], float] = time.perf_counter
    on_lessons: Callable[[Sequence[Lesson]], None] = field(default=lambda _: None)
    has_snapshot: asyncio.Event = field(default_factory=asyncio.Event)
    _seats: dict[str, tuple[Replica, int | None]] = field(default_factory=dict, init=False)
    _documents: dict[str, Mapping[str, object]] = field(default_factory=dict, init=False)
    _unsettled: set[str] = field(default_factory=set, init=False)
    _intake: Intake = field(init=False)

    def __post_init__(self) -> None:
        self._intake = Intake(self.caches, self._seats.__contains__, self.clock)

    @property
    def is_settled(self) -> bool:
        """Has the feed said of every replica whether it is there?"""
        return self.has_snapshot.is_set() and not self._unsettled

    def apply(self, message: FromFeed) -> None:
        """Raises Overrun where too much came: a fresh snapshot makes it good."""
        match message:
            case Snapshot():
                self._intake.forget()
                self._learn(message.documents)
                wanted = {sighting.id for sighting in message.sightings}
                gone = [replica.id for replica in self.registry.replicas() if replica.id not in wanted]
                self._update(message.sightings, gone, message.sequence)
                self.has_snapshot.set()
            case Delta():
                self._learn(message.documents)
                self._update(message.sightings, message.gone, message.sequence)
            case Dispatches():
                self._intake.dispatched(message.chains)
            case Told():
                for replica_id, changes in message.changes:
                    self._intake.told(replica_id, changes)
            case Fed():
                self.caches.tell_status(message.replica_id, message.status)
            case Learned():
                self.on_lessons(message.lessons)

    def _learn(self, documents: Sequence[Document]) -> None:
        self._documents.update({document.model: document.fields for document in documents})

    def _update(self, sightings: Sequence[Sighting], gone: Sequence[str], sequence: int) -> None:
        specs = {replica.id: replica.spec for replica in self.registry.replicas()}
        # One whose column changed is another replica by the same name: it went and came back while we were not told.
        changed = [sighting.id for sighting in sightings if self._was_replaced(sighting)]
        for id in (*gone, *changed):
            specs.pop(id, None)
        self._reconcile(specs)
        self._reconcile(specs | {sighting.id: sighting.spec for sighting in sightings})
        members = {member.replica.id: member for member in self.registry.members()}
        for sighting in sightings:
            member = members[sighting.id]
            if sighting.id not in self._seats:
                self._seats[sighting.id] = (member.replica, sighting.column)
                if sighting.column is not None:
                    member.publish = self.desk.seat(member.replica, sighting.column)
            model = sighting.identity.models[0] if sighting.identity is not None else None
            self.registry.adopt(sighting, self._documents.get(model) if model is not None else None)
        self._unsettled -= {sighting.id for sighting in sightings if sighting.is_settled}
        self._unsettled |= {sighting.id for sighting in sightings if not sighting.is_settled}
        self._unsettled &= members.keys()
        if self.desk.row is not None:
            self.desk.row.applied = sequence

    def _was_replaced(self, sighting: Sighting) -> bool:
        seat = self._seats.get(sighting.id)
        return seat is not None and seat[1] != sighting.column

    def _reconcile(self, specs: Mapping[str, ReplicaSpec]) -> None:
        self.registry.reconcile(specs.values())
        for id in self._seats.keys() - specs.keys():
            _, column = self._seats.pop(id)
            if column is not None:
                self.desk.unseat(column)
