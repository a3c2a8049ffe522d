"""How a longer line costs more: push and grant at a thousand and at a million waiters, and bytes of each. Steps the
line itself; no clock, no task."""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil

from loadtest.admission.demands import demand
from router.admission.line import Line
from router.admission.waiters import Waiter
from router.core import Demand, Standing

DEPTHS = (1_000, 100_000, 1_000_000)
NUM_TENANTS = 100
NUM_MEASURED = 20_000


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one depth: microseconds of CPU, and bytes of a waiter without its demand."""

    depth: int
    push_us: float
    grant_us: float
    entry_bytes: float


def measure(depth: int) -> Costs:
    """Fill the line, then push and grant so many more; the collector is off, as a router's runs seldom."""
    line: Line[None] = Line()
    standings = [Standing(tenant=f"t{number}") for number in range(NUM_TENANTS)]
    demands = [demand("r", at * 1e-3, 600.0, standings[at % NUM_TENANTS]) for at in range(depth + NUM_MEASURED)]
    gc.collect()
    gc.disable()
    try:
        before = psutil.Process().memory_info().rss
        for at in range(depth):
            line.join(demands[at], None, 0.0, at)
        grown = psutil.Process().memory_info().rss - before
        pushed_us = _timed_us(lambda: _push(line, demands, depth))
        granted_us = _timed_us(lambda: _grant(line))
        return Costs(depth, pushed_us, granted_us, grown / depth)
    finally:
        gc.enable()


def _push(line: Line[None], demands: Sequence[Demand], depth: int) -> None:
    for at in range(depth, depth + NUM_MEASURED):
        line.join(demands[at], None, 0.0, at)


def _grant(line: Line[None]) -> None:
    left = NUM_MEASURED

    def serve(waiter: Waiter[None]) -> bool:
        nonlocal left
        left -= 1
        if left >= 0:
            line.serve(line.flows.get(waiter.standing), waiter.band, 640.0, 0.0)
        return left >= 0

    line.advance(serve)


def _timed_us(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) / NUM_MEASURED * 1e6
