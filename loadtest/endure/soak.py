"""Mixed load for a long time: sizes, streams, new and old text, clients that leave at any moment. What the router's
memory does meanwhile, and whether its counts are zero at the end."""

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field

from loadtest.endure.client import Client, connect
from loadtest.endure.rig import Rig, open_rig
from loadtest.peers.accounting import rss_mb
from loadtest.words import WORDS

_LOOK_EVERY_S = 5.0
_SIZES = (500, 500, 500, 8_192, 65_536)
_NUM_TEXTS = 200
_LEAVING_SHARE = 0.2
_SETTLE_S = 3.0
# Small caches are full soon: what grows then is no cache.
_FLAGS = ("--index-bytes=8388608", "--token-cache-bytes=8388608")


@dataclass(eq=False, slots=True)
class Soak:
    """`looks`: seconds since the start, and resident memory in MB (2**20 bytes). `refused`: answers by their status,
    where that is not 200."""

    num_ended: int = 0
    num_left: int = 0
    num_cut: int = 0
    refused: Counter[int] = field(default_factory=Counter)
    looks: list[tuple[float, float]] = field(default_factory=list)
    num_in_flight: int = 0

    @property
    def mb_per_hour(self) -> float:
        """Slope of a line through the second half of the looks, by least squares."""
        half = self.looks[len(self.looks) // 2 :]
        mean_s = sum(at for at, _ in half) / len(half)
        mean_mb = sum(mb for _, mb in half) / len(half)
        spread = sum((at - mean_s) ** 2 for at, _ in half)
        return 3600 * sum((at - mean_s) * (mb - mean_mb) for at, mb in half) / spread if spread else 0.0


async def measure_soak(seconds: float, num_clients: int, requests_per_s: float) -> Soak:
    """Raises LoadError where the router does not start."""
    with open_rig(_FLAGS) as rig:
        return await _measure(rig, seconds, num_clients, requests_per_s)


async def _measure(rig: Rig, seconds: float, num_clients: int, requests_per_s: float) -> Soak:
    soak, end = Soak(), time.monotonic() + seconds
    draw = random.Random(1)
    texts = [" ".join(draw.choices(WORDS, k=size // 5))[:size] for size in _SIZES for _ in range(_NUM_TEXTS)]
    async with asyncio.TaskGroup() as group:
        group.create_task(_look(soak, rig, end))
        for number in range(num_clients):
            group.create_task(_visit(soak, rig.port, random.Random(number), texts, end, num_clients / requests_per_s))
    await asyncio.sleep(_SETTLE_S)
    soak.num_in_flight = rig.in_flight()
    return soak


async def _look(soak: Soak, rig: Rig, end: float) -> None:
    start = time.monotonic()
    while time.monotonic() < end:
        rig.router.check()
        soak.looks.append((time.monotonic() - start, rss_mb(rig.router.pid)))
        await asyncio.sleep(_LOOK_EVERY_S)


async def _visit(soak: Soak, port: int, draw: random.Random, texts: list[str], end: float, mean_pause_s: float) -> None:
    """One client after another, each with at most four requests on its connection."""
    while time.monotonic() < end:
        await asyncio.sleep(draw.expovariate(1 / mean_pause_s))
        client = await connect(port)
        for _ in range(draw.randint(1, 4)):
            text = draw.choice(texts) if draw.random() < 0.7 else f"{draw.random()} {draw.choice(texts)}"
            if not await _ask(soak, client, draw, text):
                break
            await asyncio.sleep(draw.expovariate(1 / mean_pause_s))
        client.leave()


async def _ask(soak: Soak, client: Client, draw: random.Random, text: str) -> bool:
    """Did the answer come, and the connection stay?"""
    client.ask(text, stream=draw.random() < 0.6, max_tokens=draw.randint(1, 40), seed=draw.choice((0, 1_000, 20_000)))
    if draw.random() < _LEAVING_SHARE:
        await asyncio.sleep(draw.random() * 0.2)
        client.leave()
        soak.num_left += 1
        return False
    is_whole = await client.has_ended
    soak.num_ended += is_whole
    if client.status not in (0, 200):
        soak.refused[client.status] += 1
    else:
        soak.num_cut += not is_whole
    return is_whole
