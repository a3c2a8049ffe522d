"""How the common line costs more as it grows: CPU of Redis and of the router for each push and grant among a thousand
waiters and among a million, and bytes of each. One router takes the turns, as it does, with its own line; the rest of
the queue (tasks, timers, replicas) costs the same however many wait, and is left out.

A short line over another Redis is measured in turn with the long one: what else runs on this machine makes both slower.
"""

import gc
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import psutil

from loadtest.admission.demands import POOL, demand
from loadtest.admission.depth import DEPTHS, NUM_TENANTS
from loadtest.admission.live import private_redis
from router.admission.bands import BandTerms
from router.admission.capacity import Room
from router.admission.line import Line
from router.admission.ration import KEYS, TURN
from router.admission.turns import MOST_GRANTS, Turns
from router.core import Demand, Standing
from router.store import names
from router.store.connection import Store

# Its turns are long on purpose, and it is loaded: what a router would wait for says nothing here.
PATIENCE_S = 30.0
NUM_ROUNDS = 15
# Of one round, on each line.
PUSHED, PUSHED_A_TURN = 2 * MOST_GRANTS, 1000
SHORT = 1000
TOKENS = 640.0
# Arrivals, one after the other; every tenth is in a hurry and has its turn before others of its flow.
GAP_S, TIMEOUT_S, HURRY_S, ONE_IN = 1e-3, 600.0, 10.0, 10


@dataclass(frozen=True, slots=True)
class Spent:
    """Microseconds of CPU for one push or grant."""

    redis_us: float
    router_us: float

    @property
    def both_us(self) -> float:
        return self.redis_us + self.router_us


@dataclass(frozen=True, slots=True)
class Costs:
    """With so many waiting: medians of the rounds, those of the short line in the same rounds, and bytes of a waiter,
    its demand left out."""

    depth: int
    push: Spent
    grant: Spent
    short_push: Spent
    short_grant: Spent
    redis_bytes: float
    router_bytes: float

    def __str__(self) -> str:
        moves = (("push", self.push, self.short_push), ("grant", self.grant, self.short_grant))
        told = "; ".join(
            f"{name} {long.redis_us:.1f} us of Redis and {long.router_us:.1f} us of the router, "
            f"{long.both_us / short.both_us:.2f} times as among {SHORT:,} (Redis alone "
            f"{long.redis_us / short.redis_us:.2f})"
            for name, long, short in moves
        )
        return (
            f"{self.depth:>9,} waiting: {told}; {self.redis_bytes:.0f} bytes each in Redis, "
            f"{self.router_bytes:.0f} in the router"
        )


@dataclass(eq=False, slots=True)
class _Pool:
    """One router's line and turns."""

    store: Store
    turns: Turns = field(default_factory=lambda: Turns("r", BandTerms()))
    line: Line[Any] = field(default_factory=Line)
    num_made: int = 0

    def demands(self, count: int) -> list[Demand]:
        """The next that arrive."""
        first, self.num_made = self.num_made, self.num_made + count
        return [
            demand("r", at * GAP_S, HURRY_S if at % ONE_IN == 0 else TIMEOUT_S, _STANDINGS[at % NUM_TENANTS])
            for at in range(first, first + count)
        ]

    async def push(self, demands: Sequence[Demand]) -> None:
        """Nobody is given a place."""
        for first in range(0, len(demands), PUSHED_A_TURN):
            for at, each in enumerate(demands[first : first + PUSHED_A_TURN], first):
                self.turns.join(self.line.join(each, None, 0.0, at), TOKENS)
            await self.turn(0)

    async def grant(self, count: int) -> None:
        """So many get their place, and give it back before the next turn."""
        granted = 0
        while granted < count:
            granted += await self.turn(MOST_GRANTS)
        if granted > count:
            raise AssertionError("a turn gives as many as asked for")

    async def turn(self, places: int) -> int:
        """A turn with so many places. Returns how many were granted."""
        prefix = names.pool(POOL.model)
        keys = [*(prefix + name for name in KEYS), prefix]
        answer = await self.store.run(TURN, keys, self.turns.compose(0.0, Room(places)))
        waiters = self.turns.apply(answer, 0.0, 0.0)
        for waiter in waiters:
            self.line.serve(self.line.flows.get(waiter.standing), waiter.band, TOKENS, 0.0)
            self.line.leave(waiter)
            self.turns.leave(waiter)
        return len(waiters)

    async def redis_us(self) -> float:
        info = await self.info("cpu")
        return (float(info["used_cpu_user"]) + float(info["used_cpu_sys"])) * 1e6

    async def redis_bytes(self) -> int:
        return int((await self.info("memory"))["used_memory"])

    async def info(self, section: str) -> dict[str, Any]:
        said = await self.store.call("INFO", section)
        if isinstance(said, dict):
            return said
        return dict(line.split(":", 1) for line in bytes(said).decode().splitlines() if ":" in line)


_STANDINGS = [Standing(tenant=f"t{number}") for number in range(NUM_TENANTS)]


async def measure() -> list[Costs]:
    """At each depth, the shallow first, in one line that grows. The collector is off, as a router's runs seldom."""
    gc.collect()
    gc.disable()
    try:
        async with AsyncExitStack() as stack:
            pool, short = [await stack.enter_async_context(_Opened()) for _ in range(2)]
            await short.push(short.demands(SHORT))
            return [await _costs(pool, short, depth) for depth in DEPTHS]
    finally:
        gc.enable()


class _Opened(AsyncExitStack):
    """A pool over a Redis of its own, registered there."""

    async def __aenter__(self) -> Any:
        await super().__aenter__()
        store = Store((await self.enter_async_context(private_redis())).url, PATIENCE_S)
        await self.enter_async_context(store.opened())
        await store.wait_up(PATIENCE_S)
        # Its rewriting would count for some moves and not for others.
        await store.call("CONFIG", "SET", "auto-aof-rewrite-percentage", 0)
        pool = _Pool(store)
        pool.turns.rejoin()
        await pool.turn(0)
        return pool


async def _costs(pool: _Pool, short: _Pool, depth: int) -> Costs:
    missing = pool.demands(depth - len(pool.line))
    process, before = psutil.Process(), await pool.redis_bytes()
    resident = process.memory_info().rss
    await pool.push(missing)
    router_bytes = (process.memory_info().rss - resident) / len(missing)
    redis_bytes = (await pool.redis_bytes() - before) / len(missing)
    rounds = [(await _round(pool), await _round(short)) for _ in range(NUM_ROUNDS)]
    (push, grant), (short_push, short_grant) = (
        tuple(_middle([each[which][move] for each in rounds]) for move in range(2)) for which in range(2)
    )
    return Costs(depth, push, grant, short_push, short_grant, redis_bytes, router_bytes)


async def _round(pool: _Pool) -> tuple[Spent, Spent]:
    """Leaves the line as long as it was."""
    demands = pool.demands(PUSHED)
    began = await pool.redis_us(), time.process_time()
    await pool.push(demands)
    between = await pool.redis_us(), time.process_time()
    await pool.grant(PUSHED)
    ended = await pool.redis_us(), time.process_time()
    return _spent(began, between), _spent(between, ended)


def _spent(before: tuple[float, float], after: tuple[float, float]) -> Spent:
    """On the moves of one round."""
    return Spent((after[0] - before[0]) / PUSHED, (after[1] - before[1]) / PUSHED * 1e6)


def _middle(spent: Sequence[Spent]) -> Spent:
    return Spent(median(each.redis_us for each in spent), median(each.router_us for each in spent))
