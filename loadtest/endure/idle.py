"""What an open idle stream costs in memory: thousands of streams that have had one event and wait for the next."""

import asyncio
import resource
from dataclasses import dataclass

from loadtest.endure.client import Client, connect
from loadtest.endure.rig import Rig, open_rig
from loadtest.errors import LoadError
from loadtest.peers.accounting import rss_mb

_AT_ONCE = 64
_WITHIN_S = 60.0
# Microseconds until the mock's next event: longer than anybody looks.
_FOR_EVER = 3_600_000_000
_SPARE_DESCRIPTORS = 500


@dataclass(frozen=True, slots=True)
class Idle:
    """Resident memory of the router in MB (2**20 bytes), without and with the streams, and after they have gone."""

    num_streams: int
    before_mb: float
    open_mb: float
    after_mb: float
    num_left: int

    @property
    def kb_each(self) -> float:
        return (self.open_mb - self.before_mb) * 1024 / self.num_streams


async def measure_idle(num_streams: int) -> Idle:
    """Raises LoadError where this host allows too few descriptors, or a stream does not begin."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if 2 * num_streams + _SPARE_DESCRIPTORS > limit:
        raise LoadError(f"--streams: {num_streams} need {2 * num_streams} descriptors, and this host allows {limit}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    flags = [f"--max-in-flight={num_streams}", "--idle-timeout-s=3600", "--request-timeout-s=7200"]
    with open_rig(flags, has_tokenizer=False) as rig:
        return await _measure(rig, num_streams)


async def _measure(rig: Rig, num_streams: int) -> Idle:
    warm = [await _open(rig.port, number) for number in range(_AT_ONCE)]
    await _leave(rig, warm)
    before_mb = rss_mb(rig.router.pid)
    clients: list[Client] = []
    while len(clients) < num_streams:
        numbers = range(len(clients), min(len(clients) + _AT_ONCE, num_streams))
        clients += await asyncio.gather(*(_open(rig.port, number) for number in numbers))
    await asyncio.sleep(2.0)
    open_mb = rss_mb(rig.router.pid)
    await _leave(rig, clients)
    await asyncio.sleep(2.0)
    return Idle(num_streams, before_mb, open_mb, rss_mb(rig.router.pid), rig.in_flight())


async def _open(port: int, number: int) -> Client:
    client = await connect(port)
    client.ask(f"Stream {number}: tell me of railways.", stream=True, max_tokens=8, seed=_FOR_EVER)
    async with asyncio.timeout(_WITHIN_S):
        if not await client.has_begun:
            raise LoadError(f"stream {number} did not begin")
    return client


async def _leave(rig: Rig, clients: list[Client]) -> None:
    for client in clients:
        client.leave()
    async with asyncio.timeout(_WITHIN_S):
        while await asyncio.to_thread(rig.in_flight):  # noqa: ASYNC110  # the router tells nobody
            await asyncio.sleep(0.1)
