"""Responses in this process alone, where there is no Redis: what `archive.py` does, as far as one process can. The
oldest go when an owner has too many bytes, or they are too old; what runs ends with the process."""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from router.ports import Clock
from router.transports.responses.archive import MAX_EVENTS, MAX_READ, Archive, KeepLimits
from router.transports.responses.states import Orphan, ResponseState, Told


@dataclass(eq=False, slots=True)
class Entry:
    """`fence` is None where it does not run; `num_said` counts the events, also those that went."""

    owner: str
    state: ResponseState
    record: bytes
    stored_at: float
    fence: int | None = None
    num_said: int = 0
    seen_at: float = 0.0
    events: deque[tuple[int, bytes]] = field(default_factory=lambda: deque(maxlen=MAX_EVENTS))


@dataclass(eq=False, slots=True)
class ArchiveHere:
    clock: Clock
    limits: KeepLimits = field(default_factory=KeepLimits)
    is_up: bool = True
    num_bytes: dict[str, int] = field(default_factory=dict)
    _entries: OrderedDict[str, Entry] = field(default_factory=OrderedDict)

    async def get(self, owner: str, id: str) -> tuple[ResponseState, bytes] | None:
        entry = self._owned(owner, id)
        return None if entry is None else (entry.state, entry.record)

    async def put(self, owner: str, id: str, state: ResponseState, record: bytes) -> None:
        self._keep(id, Entry(owner, state, record, self.clock()))

    async def delete(self, owner: str, id: str) -> bool:
        return self._owned(owner, id) is not None and self._forget(id)

    async def begin(self, owner: str, id: str, state: ResponseState, record: bytes, work: bytes) -> int:
        now = self.clock()
        self._keep(id, Entry(owner, state, record, now, fence=1, seen_at=now))
        return 1

    async def say(self, id: str, fence: int, state: ResponseState, first: int, events: Sequence[bytes]) -> bool:
        entry = self._held(id, fence)
        if entry is None:
            return False
        entry.state = state
        for number, text in enumerate(events, first):
            if number >= entry.num_said:
                entry.events.append((number, text))
                entry.num_said = number + 1
        return True

    async def end(
        self, id: str, fence: int, state: ResponseState, record: bytes, first: int, events: Sequence[bytes]
    ) -> bool:
        if not await self.say(id, fence, state, first, events):
            return False
        self._keep(id, replace(self._entries[id], record=record, stored_at=self.clock(), fence=None))
        return True

    async def cancel(self, owner: str, id: str) -> tuple[int, int] | None:
        entry = self._owned(owner, id)
        if entry is None or entry.fence is None:
            return None
        entry.fence += 1
        return entry.fence, entry.num_said

    async def read(self, id: str, after: int) -> Told:
        entry = self._entries.get(id)
        if entry is None:
            return Told((), is_live=False)
        entry.seen_at = self.clock()
        if entry.fence is None and entry.seen_at - entry.stored_at > self.limits.events_s:
            entry.events.clear()
        behind = [each for each in entry.events if each[0] > after]
        return Told(behind[:MAX_READ], entry.fence is not None)

    async def renew(self, held: Sequence[tuple[str, int]]) -> Sequence[float | None]:
        entries = [self._held(id, fence) for id, fence in held]
        return [None if entry is None else self.clock() - entry.seen_at for entry in entries]

    async def give_back(self, held: Sequence[tuple[str, int]]) -> None:
        """There are no others."""

    async def take(self) -> Orphan | None:
        return None

    def _owned(self, owner: str, id: str) -> Entry | None:
        entry = self._entries.get(id)
        if entry is None or entry.owner != owner or self.clock() - entry.stored_at > self.limits.keep_s:
            return None
        return entry

    def _held(self, id: str, fence: int) -> Entry | None:
        entry = self._entries.get(id)
        return entry if entry is not None and entry.fence == fence else None

    def _keep(self, id: str, entry: Entry) -> None:
        self._forget(id)
        self._entries[id] = entry
        num_bytes = self.num_bytes[entry.owner] = self.num_bytes.get(entry.owner, 0) + len(entry.record)
        if num_bytes > self.limits.owner_bytes:
            self._make_room(entry)

    def _make_room(self, newest: Entry) -> None:
        """None that runs goes."""
        for old, entry in list(self._entries.items()):
            if self.num_bytes[newest.owner] <= self.limits.owner_bytes or entry is newest:
                return
            if entry.owner == newest.owner and entry.fence is None:
                self._forget(old)

    def _forget(self, id: str) -> bool:
        entry = self._entries.pop(id, None)
        if entry is None:
            return False
        self.num_bytes[entry.owner] -= len(entry.record)
        if not self.num_bytes[entry.owner]:
            del self.num_bytes[entry.owner]
        return True

    def __repr__(self) -> str:
        return f"<ArchiveHere {len(self._entries)} responses, {sum(self.num_bytes.values())} bytes>"


AnyArchive = Archive | ArchiveHere
