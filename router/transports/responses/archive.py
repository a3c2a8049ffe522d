"""Responses in Redis, for all routers that share it: records, the events of those that go on without their client, and
who runs them. Knows Redis' scripts and their arguments; knows nothing of requests or of HTTP.

A response that runs is held under a lease with a fence: who does not renew it loses it, and what they say afterwards is
not heard. Raises ResponsesAway where Redis is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from router.store import names
from router.store.connection import Script, Store
from router.store.errors import StoreAway
from router.transports.responses.states import Orphan, ResponsesAway, ResponseState, Told

LEASE_S = 15.0
# Of one response; of those that are longer the oldest go.
MAX_EVENTS = 32_768
# Read at a time.
MAX_READ = 256


@dataclass(frozen=True, slots=True)
class KeepLimits:
    """Seconds that a response is kept; bytes of one owner's records; seconds that events are kept after the last."""

    keep_s: float = 30 * 86400.0
    owner_bytes: int = 64 * 2**20
    events_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Archive:
    store: Store
    limits: KeepLimits

    @property
    def is_up(self) -> bool:
        return self.store.is_up

    async def get(self, owner: str, id: str) -> tuple[ResponseState, bytes] | None:
        """State and record; None where the owner has none of that id."""
        try:
            found, state, record = await self.store.call("HMGET", names.response(id), "owner", "state", "record")
        except StoreAway as error:
            raise ResponsesAway(str(error)) from None
        return (ResponseState(state.decode()), record) if found is not None and found.decode() == owner else None

    async def put(self, owner: str, id: str, state: ResponseState, record: bytes) -> None:
        await self._run("put", [owner, id, state, record, *self._keep])

    async def delete(self, owner: str, id: str) -> bool:
        """Was there one?"""
        return bool(await self._run("delete", [owner, id]))

    async def begin(self, owner: str, id: str, state: ResponseState, record: bytes, work: bytes) -> int:
        """One that goes on without its client, held by us: its fence."""
        return int(await self._run("begin", [owner, id, state, record, *self._keep, work, _ms(LEASE_S)]))

    async def say(self, id: str, fence: int, state: ResponseState, first: int, events: Sequence[bytes]) -> bool:
        """`first` is the number of the first event; those that were said before may be among them. Is it still ours?"""
        return bool(await self._run("say", [id, fence, state, MAX_EVENTS, first, *events]))

    async def end(
        self, id: str, fence: int, state: ResponseState, record: bytes, first: int, events: Sequence[bytes]
    ) -> bool:
        """Was it ours to end?"""
        kept = [*self._keep, _ms(self.limits.events_s)]
        return bool(await self._run("end", [id, fence, state, record, *kept, MAX_EVENTS, first, *events]))

    async def cancel(self, owner: str, id: str) -> tuple[int, int] | None:
        """Take over one that runs: our fence, and how many events were said. None where none runs."""
        found = await self._run("cancel", [owner, id, _ms(LEASE_S)])
        return None if found is None else (int(found[0]), int(found[1]))

    async def read(self, id: str, after: int) -> Told:
        """The next events behind the one of that number, -1 for all."""
        runs, *found = await self._run("read", [id, after, MAX_READ])
        return Told([(int(number), text) for number, text in zip(found[::2], found[1::2], strict=True)], bool(runs))

    async def renew(self, held: Sequence[tuple[str, int]]) -> Sequence[float | None]:
        """Of each, by id and fence, how many seconds ago somebody read its events; None where it is lost."""
        found = await self._run("renew", [_ms(LEASE_S), *(word for pair in held for word in pair)])
        return [None if unseen_ms < 0 else unseen_ms / 1e3 for unseen_ms in found]

    async def give_back(self, held: Sequence[tuple[str, int]]) -> None:
        """Others go on with them."""
        await self._run("give_back", [word for pair in held for word in pair])

    async def take(self) -> Orphan | None:
        """One that nobody looks after any more."""
        found = await self._run("take", [_ms(LEASE_S)])
        if found is None:
            return None
        id, fence, owner, record, work, num_deaths, num_said, is_cancelled = found
        return Orphan(
            id.decode(), int(fence), owner.decode(), record, work, int(num_deaths), int(num_said), bool(is_cancelled)
        )

    @property
    def _keep(self) -> tuple[int, int]:
        return _ms(self.limits.keep_s), self.limits.owner_bytes

    async def _run(self, name: str, words: Sequence[Any]) -> Any:
        try:
            return await self.store.run(_script(name), [names.RESPONSES], words)
        except StoreAway as error:
            raise ResponsesAway(str(error)) from None

    def __repr__(self) -> str:
        return f"<Archive in {self.store!r}>"


@cache
def _script(name: str) -> Script:
    folder = Path(__file__).parent / "lua"
    return Script((folder / "common.lua").read_text() + (folder / f"{name}.lua").read_text())


def _ms(seconds: float) -> int:
    return round(seconds * 1e3)
