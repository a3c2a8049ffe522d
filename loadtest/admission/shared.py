"""How the common line in Redis costs more as it grows: time in Redis for each push and grant at a thousand and at a
million waiters, and bytes of each. One router takes the turns; knows no queue and no clock of its own."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from loadtest.admission.demands import POOL, demand
from loadtest.admission.depth import DEPTHS, NUM_TENANTS, Costs
from loadtest.admission.live import private_redis
from router.admission.bands import BandTerms
from router.admission.capacity import Room
from router.admission.ration import KEYS, TURN
from router.admission.turns import MOST_JOINS, Turns
from router.admission.waiters import Waiter, due_of, standing_of
from router.core import Standing
from router.store import names
from router.store.connection import Store

# Its turns are long on purpose, and it is loaded: what a router would wait for says nothing here.
PATIENCE_S = 30.0
NUM_MEASURED_TURNS = 20
NUM_WAITERS = 10 * NUM_TENANTS


@dataclass(eq=False, slots=True)
class _Line:
    """One router's turns, and the same few waiters in its line over and over."""

    store: Store
    turns: Turns = field(default_factory=lambda: Turns("r", BandTerms()))
    waiters: list[Waiter[Any]] = field(default_factory=lambda: [_waiter(at) for at in range(NUM_WAITERS)])

    async def push(self, count: int) -> None:
        """So many more, in as few turns as they take; nobody is given a place."""
        for first in range(0, count, MOST_JOINS):
            for at in range(first, min(count, first + MOST_JOINS)):
                self.turns.join(self.waiters[at % NUM_WAITERS], 640.0)
            await self.turn(self.turns.used)

    async def turn(self, places: int) -> int:
        """A turn with so many places. Returns how many were granted."""
        began = time.monotonic()
        prefix = names.pool(POOL.model)
        keys = [*(prefix + name for name in KEYS), prefix]
        answer = await self.store.run(TURN, keys, self.turns.compose(began, Room(places)))
        granted = len(self.turns.apply(answer, began, time.monotonic()))
        for _ in range(granted):
            self.turns.take(640)
        return granted

    async def redis_us(self) -> float:
        """Microseconds that Redis has spent in scripts."""
        stats = await self.store.call("INFO", "commandstats")
        found = stats.items() if isinstance(stats, dict) else _parsed(stats)
        return sum(float(each["usec"]) for name, each in found if name.startswith("cmdstat_eval"))

    async def redis_bytes(self) -> int:
        memory = await self.store.call("INFO", "memory")
        return int(memory["used_memory"])


async def measure() -> list[Costs]:
    """At each depth, the shallow first, in one line that grows."""
    found, pushed = [], 0
    async with private_redis() as server:
        store = Store(server.url, PATIENCE_S)
        async with store.opened():
            async with asyncio.timeout(PATIENCE_S):
                while not store.is_up:  # noqa: ASYNC110  (Redis is waited for)
                    await asyncio.sleep(0.01)
            line = _Line(store)
            line.turns.rejoin()
            await line.turn(0)
            for depth in DEPTHS:
                before = await line.redis_bytes()
                await line.push(depth - pushed)
                grown = await line.redis_bytes() - before
                found.append(await _costs(line, depth, grown / (depth - pushed)))
                pushed = depth
    return found


async def _costs(line: _Line, depth: int, entry_bytes: float) -> Costs:
    began = await line.redis_us()
    await line.push(NUM_MEASURED_TURNS * MOST_JOINS)
    pushed_us = await line.redis_us() - began
    began, granted = await line.redis_us(), 0
    while granted < NUM_MEASURED_TURNS * MOST_JOINS:
        granted += await line.turn(line.turns.used + MOST_JOINS)
    granted_us = await line.redis_us() - began
    return Costs(depth, pushed_us / (NUM_MEASURED_TURNS * MOST_JOINS), granted_us / granted, entry_bytes)


def _waiter(at: int) -> Waiter[Any]:
    asked = demand("r", at * 1e-3, 600.0, Standing(tenant=f"t{at % NUM_TENANTS}"))
    return Waiter(asked, None, standing_of(asked), 0.0, due_of(asked), at)


def _parsed(stats: bytes) -> list[tuple[str, dict[str, str]]]:
    lines = [line.split(":", 1) for line in stats.decode().split() if line.startswith("cmdstat_")]
    return [(name, dict(word.split("=", 1) for word in words.split(","))) for name, words in lines]
