"""Several router processes over one Redis: does anybody start while somebody who comes before has waited for long?
Knows processes, logs of starts, and the check of their order; the replicas are counters.
"""

import asyncio
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from loadtest.admission.demands import OUTPUT_TOKENS, demand
from loadtest.admission.live import private_redis, router
from loadtest.errors import LoadError
from router.core import Band, Outcome, Standing
from router.errors import PointsmanError

CAPACITY, SERVICE_S = 40, 0.2
# What the pool is offered, as a share of what it can do; of that, bulk.
OFFERED, BULK_SHARE = 1.5, 0.3
TOLERANCE_S = 0.1
# Two tenants; the first of them offers so much of it all.
TENANTS, FIRST_SHARE = ("a", "b"), 0.7


@dataclass(frozen=True, slots=True)
class Start:
    """One request, in Unix seconds; `started` is None where it never was, `is_alone` where its router had no Redis."""

    band: int
    tenant: str
    arrived: float
    started: float | None
    left: float
    is_alone: bool = False

    @property
    def waited_until(self) -> float:
        return self.left if self.started is None else self.started


@dataclass(frozen=True, slots=True)
class Order:
    """What the check of a log found. `num_alone` started while their router had lost Redis: nothing orders them."""

    num_started: int
    num_alone: int
    num_waited_long: int
    num_violations: int
    worst_s: float
    bulk_share: float


async def measure(num_routers: int, duration_s: float) -> Order:
    """Run the processes, and check their logs together."""
    async with private_redis() as server:
        with TemporaryDirectory(prefix="pointsman-load") as folder:
            logs = [Path(folder) / f"{number}.json" for number in range(num_routers)]
            children = [
                await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "loadtest.admission", "child", server.url, str(log), str(number)),
                    *(str(num_routers), str(duration_s)),
                )
                for number, log in enumerate(logs)
            ]
            try:
                codes = [await child.wait() for child in children]
            finally:
                for child in children:
                    if child.returncode is None:
                        child.kill()
            if any(codes):
                raise LoadError("a router process failed")
            starts = [Start(*words) for log in logs for words in json.loads(log.read_text())]
            return check(starts)


def check(starts: Sequence[Start]) -> Order:
    """None starts while one that comes before it, and was queued over the tolerance before it, still waits. Within a
    tenant and a class the order is that of arrival; between those it is by shares."""
    lines: dict[tuple[int, str], list[Start]] = {}
    for each in sorted(starts, key=lambda each: each.arrived):
        if not each.is_alone:
            lines.setdefault((each.band, each.tenant), []).append(each)
    overdue_s = [overdue for line in lines.values() for overdue in _overdue_s(line)]
    started = [each for each in starts if each.started is not None]
    return Order(
        len(started),
        sum(each.is_alone for each in started),
        sum(each.waited_until - each.arrived > TOLERANCE_S for each in started),
        len(overdue_s),
        max(overdue_s, default=0.0),
        sum(each.band == Band.BULK for each in started) / max(1, len(started)),
    )


def _overdue_s(line: Sequence[Start]) -> Iterator[float]:
    """For each that started too early: how long one that came before it had still to wait."""
    latest, at = 0.0, 0
    for each in line:
        while line[at].arrived + TOLERANCE_S < each.arrived:
            latest = max(latest, line[at].waited_until)
            at += 1
        if each.started is not None and each.started < latest:
            yield latest - each.started


async def run_child(url: str, log: Path, number: int, num_routers: int, duration_s: float) -> None:
    """One router: offer its part of the load, and write what started when."""
    rng, starts = random.Random(number), list[Start]()
    rate = OFFERED * CAPACITY / SERVICE_S / num_routers

    async with router(url, CAPACITY, f"child{number}") as made:

        async def one(band: Band, tenant: str) -> None:
            arrived, now = time.time(), time.monotonic()
            started, is_alone = None, False
            try:
                lease = await made.queue.place(demand("r", now, 600.0, Standing(band=band, tenant=tenant)))
                started, is_alone = time.time(), not made.pool.turns.epoch
                await asyncio.sleep(SERVICE_S)
                lease.start()
                lease.output_tokens = OUTPUT_TOKENS
                lease.release(Outcome.OK)
            except (PointsmanError, TimeoutError):
                pass
            finally:
                starts.append(Start(int(band), tenant, arrived, started, time.time(), is_alone))

        async with asyncio.TaskGroup() as group:
            tasks = []
            until = time.monotonic() + duration_s
            while time.monotonic() < until:
                band = Band.BULK if rng.random() < BULK_SHARE else Band.NORMAL
                tasks.append(group.create_task(one(band, TENANTS[rng.random() >= FIRST_SHARE])))
                await asyncio.sleep(rng.expovariate(rate))
            for task in tasks:
                task.cancel()
    words = json.dumps([astuple(each) for each in starts])
    await asyncio.to_thread(log.write_text, words)
