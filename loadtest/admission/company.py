"""Several router processes over one Redis: does anybody start while somebody who comes before has waited for long?
Knows processes, logs of starts, and the check of their order; the replicas are counters.
"""

import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
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
_SEQUENCE_BANDS = (Band.NORMAL, Band.BULK)


@dataclass(frozen=True, slots=True)
class Start:
    """One request, in Unix seconds; `started` is None where it never was."""

    band: int
    arrived: float
    started: float | None
    left: float


@dataclass(frozen=True, slots=True)
class Order:
    """What the check of a log found."""

    num_routers: int
    num_started: int
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
            return check(starts, num_routers)


def check(starts: Sequence[Start], num_routers: int) -> Order:
    """Within a class the order is that of arrival. Who started before another who had come over the tolerance earlier
    and still waited, is a violation."""
    num_violations, worst_s = 0, 0.0
    for band in _SEQUENCE_BANDS:
        ordered = sorted((each for each in starts if each.band == band), key=lambda each: each.arrived)
        latest_end, at = 0.0, 0
        begun = sorted((each for each in ordered if each.started is not None), key=lambda each: each.arrived)
        for each in begun:
            while at < len(ordered) and ordered[at].arrived < each.arrived - TOLERANCE_S:
                latest_end = max(latest_end, ordered[at].started or ordered[at].left)
                at += 1
            overdue_s = latest_end - (each.started or 0.0)
            if overdue_s > 0.0:
                num_violations += 1
                worst_s = max(worst_s, overdue_s)
    started = [each for each in starts if each.started is not None]
    num_long = sum((each.started or 0.0) - each.arrived > TOLERANCE_S for each in started)
    bulk = sum(each.band == Band.BULK for each in started) / max(1, len(started))
    return Order(num_routers, len(started), num_long, num_violations, worst_s, bulk)


async def run_child(url: str, log: Path, number: int, num_routers: int, duration_s: float) -> None:
    """One router: offer its part of the load, and write what started when."""
    rng, starts = random.Random(number), list[Start]()
    rate = OFFERED * CAPACITY / SERVICE_S / num_routers

    async with router(url, CAPACITY, f"child{number}") as made:

        async def one(band: Band) -> None:
            arrived, now = time.time(), time.monotonic()
            started = None
            try:
                lease = await made.queue.place(demand("r", now, 600.0, Standing(band=band)))
                started = time.time()
                await asyncio.sleep(SERVICE_S)
                lease.start()
                lease.output_tokens = OUTPUT_TOKENS
                lease.release(Outcome.OK)
            except (PointsmanError, TimeoutError):
                pass
            finally:
                starts.append(Start(int(band), arrived, started, time.time()))

        async with asyncio.TaskGroup() as group:
            tasks = []
            until = time.monotonic() + duration_s
            while time.monotonic() < until:
                tasks.append(group.create_task(one(Band.BULK if rng.random() < BULK_SHARE else Band.NORMAL)))
                await asyncio.sleep(rng.expovariate(rate))
            for task in tasks:
                task.cancel()
    words = json.dumps([(each.band, each.arrived, each.started, each.left) for each in starts])
    await asyncio.to_thread(log.write_text, words)
