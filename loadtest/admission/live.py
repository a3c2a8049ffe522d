"""One router process at one Redis: what a request that fits costs, and how many grants a second a full pool gives out.
Knows queues, the store and processor time; the replicas are counters."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from loadtest.admission.demands import POOL, Places, demand
from loadtest.errors import LoadError
from router.admission.bands import BandTerms
from router.admission.capacity import Room
from router.admission.queue import LocalQueue
from router.admission.ration import Ration
from router.core import Outcome, Standing
from router.store.connection import Store
from router.store.embedded import EmbeddedServer

NUM_UNCONTENDED = 50_000
START_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Fit:
    """Microseconds of CPU of one request that fits, the placer's own taken off; Redis commands that it caused."""

    place_us: float
    commands_per_request: float


@dataclass(frozen=True, slots=True)
class Grants:
    """Of a contended pool: grants a second, and microseconds of CPU of router and of Redis for each."""

    per_s: float
    router_us: float
    redis_us: float
    num_turns: int


@dataclass(eq=False, slots=True)
class Router:
    """A queue over Redis, its replicas `capacity` places."""

    queue: LocalQueue
    places: Places
    store: Store

    @property
    def pool(self) -> Any:
        assert self.queue.ration is not None  # `router` makes none without
        return self.queue.ration.pool(POOL.model)


@contextlib.asynccontextmanager
async def private_redis() -> AsyncIterator[EmbeddedServer]:
    with TemporaryDirectory(prefix="pointsman-load") as folder:
        server = EmbeddedServer(Path(folder))
        async with server.opened():
            yield server


@contextlib.asynccontextmanager
async def router(url: str, capacity: int, name: str = "r", places: Places | None = None) -> AsyncIterator[Router]:
    store = Store(url)
    ration = Ration(store, name, BandTerms(), time.monotonic, random.random, lambda _: Room(capacity))
    store.on_change = lambda _: ration.store_changed()
    places = places or Places(capacity, time.monotonic)
    queue = LocalQueue(places, time.monotonic, 2_000_000, 600.0, ration=ration)
    made = Router(queue, places, store)
    async with store.opened(), ration.opened():
        pool = ration.pool(POOL.model)
        async with asyncio.timeout(START_TIMEOUT_S):
            while not pool.turns.epoch:  # noqa: ASYNC110  (Redis is waited for)
                await asyncio.sleep(0.01)
        yield made


async def measure_fit() -> Fit:
    """One request after the other on an idle pool, all in one turn of the loop but for a breath now and then."""
    async with private_redis() as server, router(server.url, 64) as made:
        await _breathe(made)
        standing, before = Standing(tenant="t"), await _num_commands(made.store)
        spent = 0.0
        turns_before = made.pool.num_turns
        for _ in range(NUM_UNCONTENDED // 1000):
            demands = [demand("r", time.monotonic(), 60.0, standing) for _ in range(1000)]
            spent += _place_all(made, demands) - _place_bare(made, demands)
            await asyncio.sleep(0.001)
        turns = made.pool.num_turns - turns_before
        commands = await _num_commands(made.store) - before - turns - 1
        return Fit(spent / NUM_UNCONTENDED * 1e6, max(0, commands) / NUM_UNCONTENDED)


async def measure_grants(num_requests: int, capacity: int = 256) -> Grants:
    """All asked for at once; each holds its place until the next turn of the loop."""
    async with private_redis() as server, router(server.url, capacity) as made:
        process, redis = psutil.Process(), _process_of(server)
        standings = [Standing(tenant=f"t{number}") for number in range(16)]

        async def one(number: int) -> None:
            lease = await made.queue.place(demand("r", time.monotonic(), 600.0, standings[number % 16]))
            await asyncio.sleep(0)
            lease.release(Outcome.OK)

        async with asyncio.TaskGroup() as group:
            for number in range(num_requests):
                group.create_task(one(number))
            await asyncio.sleep(0.1)
            granted, turns = made.pool.turns.num_granted, made.pool.num_turns
            began, cpu, redis_cpu = time.monotonic(), _cpu_s(process), _cpu_s(redis)
        count = made.pool.turns.num_granted - granted
        if not count:
            raise LoadError("nothing was granted")
        per_s = count / (time.monotonic() - began)
        router_us, redis_us = ((_cpu_s(each) - at) / count * 1e6 for each, at in ((process, cpu), (redis, redis_cpu)))
        return Grants(per_s, router_us, redis_us, made.pool.num_turns - turns)


def _place_all(made: Router, demands: list[Any]) -> float:
    """Processor seconds. Raises LoadError where one had to wait."""
    began = time.process_time()
    for each in demands:
        place = made.queue.place(each)
        try:
            place.send(None)
        except StopIteration as done:
            done.value.release(Outcome.OK)
        else:
            place.close()
            raise LoadError("a request that fits had to wait")
    return time.process_time() - began


def _place_bare(made: Router, demands: list[Any]) -> float:
    began = time.process_time()
    for each in demands:
        lease = made.places.place(each)
        assert lease is not None
        lease.release(Outcome.OK)
    return time.process_time() - began


async def _breathe(made: Router) -> None:
    """Until places are held in advance."""
    async with asyncio.timeout(START_TIMEOUT_S):
        while not made.pool.may_start():  # noqa: ASYNC110  (Redis is waited for)
            await asyncio.sleep(0.01)


async def _num_commands(store: Store) -> int:
    said = (await store.call("INFO", "commandstats")) or {}
    if isinstance(said, dict):
        return sum(int(each["calls"]) for name, each in said.items() if name.startswith("cmdstat_eval"))
    return sum(
        int(line.split(b"calls=")[1].split(b",")[0]) for line in said.splitlines() if line.startswith(b"cmdstat_eval")
    )


def _process_of(server: EmbeddedServer) -> psutil.Process:
    return next(
        process for process in psutil.Process().children(recursive=True) if str(server.folder) in str(process.cmdline())
    )


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
