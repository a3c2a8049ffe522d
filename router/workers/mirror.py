"""What the feed says, brought into this worker's rooms: replicas into the registry and onto the desk, dispatches of the
siblings into the prefix index. Knows messages and those rooms; knows no sockets.
"""

import asyncio
import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from router.core import Replica, ReplicaSpec
from router.ports import PrefixIndex
from router.replicas.registry import Registry
from router.replicas.sighting import Sighting
from router.workers.desk import Desk
from router.workers.frames import Delta, Dispatches, Document, Snapshot

# Of each turn of the event loop, what siblings sent may take so much; of what then waits, the oldest is forgotten.
SLICE_S = 0.001
MAX_WAITING_CHAINS = 20_000


@dataclass(eq=False, slots=True)
class Mirror:
    """Applies the feed's messages, in their order."""

    registry: Registry
    desk: Desk
    index: PrefixIndex
    clock: Callable[[], float] = time.perf_counter
    has_snapshot: asyncio.Event = field(default_factory=asyncio.Event)
    _seats: dict[str, tuple[Replica, int | None]] = field(default_factory=dict, init=False)
    _documents: dict[str, Mapping[str, object]] = field(default_factory=dict, init=False)
    _unsettled: set[str] = field(default_factory=set, init=False)
    _chains: deque[tuple[str, bytes]] = field(default_factory=deque, init=False)

    @property
    def is_settled(self) -> bool:
        """Has the feed said of every replica whether it is there?"""
        return self.has_snapshot.is_set() and not self._unsettled

    def apply(self, message: Snapshot | Delta | Dispatches) -> None:
        match message:
            case Snapshot():
                self._learn(message.documents)
                wanted = {sighting.id for sighting in message.sightings}
                gone = [replica.id for replica in self.registry.replicas() if replica.id not in wanted]
                self._update(message.sightings, gone, message.sequence)
                self.has_snapshot.set()
            case Delta():
                self._learn(message.documents)
                self._update(message.sightings, message.gone, message.sequence)
            case Dispatches():
                self._put_off(message.chains)

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

    def _put_off(self, chains: Sequence[tuple[str, bytes]]) -> None:
        was_idle = not self._chains
        self._chains.extend(chains)
        while len(self._chains) > MAX_WAITING_CHAINS:
            self._take_in(*self._chains.popleft(), is_late=True)
        if was_idle:
            asyncio.get_running_loop().call_soon(self._take_some)

    def _take_some(self) -> None:
        until = self.clock() + SLICE_S
        while self._chains and self.clock() < until:
            self._take_in(*self._chains.popleft())
        if self._chains:
            asyncio.get_running_loop().call_soon(self._take_some)

    def _take_in(self, replica_id: str, packed: bytes, is_late: bool = False) -> None:
        """What a replica lost is forgotten even when there is no time for the rest."""
        if not packed:
            self.index.remove(replica_id)
        elif not is_late and replica_id in self._seats:
            self.index.insert(replica_id, array("Q", packed))
