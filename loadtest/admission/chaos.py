"""Redis killed, paused and restarted in a loop under load: is every request answered, are all counts zero at the end,
and how long did it ever stand still. Knows routers of one process, signals, and a stopwatch.
"""

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from loadtest.admission.demands import Places, demand
from loadtest.admission.live import Router, private_redis, router
from router.core import Outcome, Standing
from router.errors import PointsmanError
from router.store.embedded import EmbeddedServer

NUM_ROUTERS, CAPACITY, SERVICE_S, OFFERED = 3, 30, 0.1, 1.2
# Between two blows, and how long a pause lasts.
BLOW_S, PAUSE_S = 1.5, 0.6
_BLOWS = ("kill", "pause", "flush")


@dataclass(eq=False, slots=True)
class Chaos:
    """`longest_stall_s` is the longest time without any start while somebody waited."""

    num_answered: int = 0
    num_refused: int = 0
    num_unanswered: int = 0
    num_blows: int = 0
    num_losses: int = 0
    most_open: int = 0
    left_over: int = 0
    longest_stall_s: float = 0.0
    waits_s: list[float] = field(default_factory=list)
    _last_start: float = 0.0

    def started(self, waited_s: float) -> None:
        now = time.monotonic()
        if self._last_start:
            self.longest_stall_s = max(self.longest_stall_s, now - max(self._last_start, now - waited_s))
        self._last_start = now
        self.waits_s.append(waited_s)


async def measure(duration_s: float) -> Chaos:
    found, places = Chaos(), Places(10**9, time.monotonic)
    async with private_redis() as server, contextlib.AsyncExitStack() as stack:
        routers = [
            await stack.enter_async_context(router(server.url, CAPACITY, f"r{number}", places))
            for number in range(NUM_ROUTERS)
        ]
        places.on_free = partial(_pump, routers)
        async with asyncio.TaskGroup() as group:
            blows = group.create_task(_blow(server, routers[0], found))
            until, tasks = time.monotonic() + duration_s, list[asyncio.Task[None]]()
            while time.monotonic() < until:
                made = random.choice(routers)
                tasks.append(group.create_task(_ask(made, found, len(tasks))))
                await asyncio.sleep(random.expovariate(OFFERED * CAPACITY / SERVICE_S))
            blows.cancel()
        found.num_unanswered = sum(not task.done() for task in tasks)
        found.left_over = places.num_open + sum(made.queue.num_waiting + made.pool.turns.used for made in routers)
        found.num_losses = sum(made.store.num_losses for made in routers)
        found.most_open = places.most_open
    return found


def _pump(routers: Sequence[Router]) -> None:
    for made in routers:
        made.queue.pump()


async def _ask(made: Router, found: Chaos, number: int) -> None:
    now = time.monotonic()
    try:
        lease = await made.queue.place(demand(str(number), now, 20.0, Standing(tenant=f"t{number % 5}")))
    except PointsmanError:
        found.num_refused += 1
        return
    found.started(time.monotonic() - now)
    await asyncio.sleep(SERVICE_S)
    lease.start()
    lease.release(Outcome.OK)
    found.num_answered += 1


async def _blow(server: EmbeddedServer, made: Router, found: Chaos) -> None:
    """Kill it (it is started again by itself), let it hang, have it forget everything; one after the other."""
    for number in range(10**6):
        await asyncio.sleep(BLOW_S)
        pid, blow = server.pid, _BLOWS[number % len(_BLOWS)]
        found.num_blows += 1
        if blow == "flush" and made.store.is_up:
            with contextlib.suppress(Exception):
                await made.store.call("FLUSHALL")
        elif pid is not None and blow == "kill":
            os.kill(pid, signal.SIGKILL)
        elif pid is not None and blow == "pause":
            os.kill(pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(PAUSE_S)
            finally:
                os.kill(pid, signal.SIGCONT)
