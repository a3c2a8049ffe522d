"""What an open WebSocket costs in memory: thousands that were opened and say nothing, and then a conversation on each,
of one turn that was answered."""

import asyncio
import os
import resource
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from loadtest.endure.rig import Rig, open_rig
from loadtest.endure.talker import Talker, connect
from loadtest.errors import LoadError
from loadtest.peers.accounting import rss_mb

Item = TypeVar("Item")
Made = TypeVar("Made")

_AT_ONCE = 64
_WITHIN_S = 120.0
_SETTLE_S = 2.0
_SPARE_DESCRIPTORS = 500


@dataclass(frozen=True, slots=True)
class Sockets:
    """Resident memory of the router in MB (2**20 bytes): without sockets, with them open, with a conversation on each,
    and after they have gone. `num_left`: descriptors that it then has more than before."""

    num_sockets: int
    before_mb: float
    open_mb: float
    talked_mb: float
    after_mb: float
    num_left: int

    @property
    def kb_each(self) -> float:
        return (self.open_mb - self.before_mb) * 1024 / self.num_sockets

    @property
    def kb_each_talked(self) -> float:
        return (self.talked_mb - self.before_mb) * 1024 / self.num_sockets


async def measure_sockets(num_sockets: int) -> Sockets:
    """Raises LoadError where this host allows too few descriptors, or a socket or a turn on it fails."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if num_sockets + _SPARE_DESCRIPTORS > limit:
        raise LoadError(f"--sockets: {num_sockets} need so many descriptors, and this host allows {limit}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    with open_rig(["--idle-timeout-s=3600"], has_tokenizer=False) as rig:
        return await _measure(rig, num_sockets)


async def _measure(rig: Rig, num_sockets: int) -> Sockets:
    warm = await _in_batches(range(_AT_ONCE), lambda number: _open(rig.port, number))
    await _in_batches(warm, _turn)
    _leave(warm)
    await asyncio.sleep(_SETTLE_S)
    before_mb, num_before = rss_mb(rig.router.pid), _num_descriptors(rig)
    talkers = await _in_batches(range(num_sockets), lambda number: _open(rig.port, number))
    await asyncio.sleep(_SETTLE_S)
    open_mb = rss_mb(rig.router.pid)
    await _in_batches(talkers, _turn)
    await asyncio.sleep(_SETTLE_S)
    talked_mb = rss_mb(rig.router.pid)
    _leave(talkers)
    await _until_few(rig, num_before)
    num_left = max(0, _num_descriptors(rig) - num_before)
    return Sockets(num_sockets, before_mb, open_mb, talked_mb, rss_mb(rig.router.pid), num_left)


async def _in_batches(items: Sequence[Item], make: Callable[[Item], Awaitable[Made]]) -> list[Made]:
    made: list[Made] = []
    for start in range(0, len(items), _AT_ONCE):
        async with asyncio.timeout(_WITHIN_S):
            made += await asyncio.gather(*map(make, items[start : start + _AT_ONCE]))
    return made


async def _open(port: int, number: int) -> Talker:
    talker = await connect(port)
    if not await talker.is_open:
        raise LoadError(f"socket {number} was not opened")
    return talker


async def _turn(talker: Talker) -> None:
    talker.turn("Tell me of railways.")
    if not await talker.has_ended:
        raise LoadError("a turn was not answered to its end")


def _leave(talkers: Sequence[Talker]) -> None:
    for talker in talkers:
        talker.leave()


async def _until_few(rig: Rig, num_descriptors: int) -> None:
    """The router's pooled connections to replicas, and ours to it, have been closed; or time is up."""
    for _ in range(round(_WITHIN_S)):
        await asyncio.sleep(1.0)
        if _num_descriptors(rig) <= num_descriptors:
            return


def _num_descriptors(rig: Rig) -> int:
    return len(os.listdir(f"/proc/{rig.router.pid}/fd"))
