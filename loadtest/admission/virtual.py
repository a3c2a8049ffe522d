"""Two questions answered in virtual time, by the router's own queue over places that are counters: does one tenant's
flood hold up another, and what becomes of ten times the load. Knows arrivals, places and waits; knows no Redis.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import quantiles

from loadtest.admission.demands import OUTPUT_TOKENS, Places, demand
from loadtest.simulator.clock import VirtualLoop
from router.admission.queue import LocalQueue
from router.core import Outcome, Standing
from router.errors import Overloaded, PointsmanError

NUM_PLACES = 64
SERVICE_S = 2.0
# What the places can serve in a second.
RATE = NUM_PLACES / SERVICE_S
# What the quiet tenant asks of its half. Nearer to 1 the queue forgets so slowly that a p95 of ten minutes is chance.
QUIET_SHARE = 0.95


@dataclass(eq=False, slots=True)
class Tally:
    """Of one tenant: waits of those served, how many were refused, and the retry-after that they were told."""

    waits_s: list[float] = field(default_factory=list)
    num_done: int = 0
    num_late: int = 0
    num_refused: int = 0
    told_s: list[float] = field(default_factory=list)
    num_untold: int = 0

    @property
    def p95_s(self) -> float:
        return quantiles(self.waits_s, n=20)[-1] if len(self.waits_s) > 1 else 0.0


@dataclass(eq=False, slots=True)
class Run:
    """`offered` is each tenant's arrivals a second; `timeout_s` from arrival to the end of the answer."""

    offered: dict[str, float]
    duration_s: float
    timeout_s: float = 60.0
    max_waiting: int = 2000
    seed: int = 1
    tallies: dict[str, Tally] = field(init=False)
    most_waiting: int = field(default=0, init=False)
    _loop: VirtualLoop = field(default_factory=VirtualLoop, init=False)
    _random: dict[str, random.Random] = field(init=False)
    _queue: LocalQueue = field(init=False)

    def __post_init__(self) -> None:
        self.tallies = {tenant: Tally() for tenant in self.offered}
        # Each tenant's own: its arrivals and times do not depend on what others do.
        self._random = {tenant: random.Random(f"{self.seed} {tenant}") for tenant in self.offered}
        places = Places(NUM_PLACES, self._loop.time)
        self._queue = LocalQueue(places, self._loop.time, self.max_waiting, self.timeout_s)
        places.on_free = self._queue.pump

    def run(self) -> "Run":
        for tenant, rate in self.offered.items():
            self._next(tenant, rate)
        self._loop.run()
        return self

    def _next(self, tenant: str, rate: float) -> None:
        when = self._loop.now + self._random[tenant].expovariate(rate)
        if when < self.duration_s:
            self._loop.at(when, self._arrive, tenant, rate)

    def _arrive(self, tenant: str, rate: float) -> None:
        self._loop.start(self._ask(tenant, self._random[tenant].expovariate(1.0 / SERVICE_S)))
        self._next(tenant, rate)

    async def _ask(self, tenant: str, service_s: float) -> None:
        tally, arrived = self.tallies[tenant], self._loop.now
        try:
            lease = await self._queue.place(demand("r", arrived, self.timeout_s, Standing(tenant=tenant)))
        except Overloaded as error:
            tally.num_refused += 1
            tally.told_s.append(error.retry_after_s or 0.0)
            tally.num_untold += not 1.0 <= (error.retry_after_s or 0.0) <= 60.0
            return
        except PointsmanError:
            tally.num_late += 1
            return
        tally.waits_s.append(self._loop.now - arrived)
        self.most_waiting = max(self.most_waiting, self._queue.num_waiting)
        await _sleep(self._loop, service_s)
        lease.start()
        lease.output_tokens = OUTPUT_TOKENS
        lease.release(Outcome.OK)
        is_late = self._loop.now > arrived + self.timeout_s
        tally.num_late += is_late
        tally.num_done += not is_late


async def _sleep(loop: VirtualLoop, seconds: float) -> None:
    done = loop.create_future()
    loop.at(loop.now + seconds, _finish, done.set_result)
    await done


def _finish(set_result: Callable[[None], None]) -> None:
    set_result(None)


def isolation(duration_s: float = 600.0, times: float = 100.0, seed: int = 1) -> tuple[Run, Run]:
    """A quiet tenant at nearly half of the pool beside one that offers its half, then so many times that."""
    share = RATE / 2
    even = Run({"quiet": share * QUIET_SHARE, "other": share}, duration_s, seed=seed).run()
    flood = Run({"quiet": share * QUIET_SHARE, "other": share * times}, duration_s, seed=seed).run()
    return even, flood


def overload(duration_s: float = 300.0, timeout_s: float = 30.0) -> tuple[Run, Run]:
    """The pool just full, then offered ten times what it can do."""
    full = Run({"all": RATE}, duration_s, timeout_s).run()
    tenfold = Run({"all": RATE * 10}, duration_s, timeout_s).run()
    return full, tenfold
