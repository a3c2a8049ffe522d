"""How a longer line costs more: push and grant at a thousand and at a million waiters, and bytes of each. Steps the
line itself; no clock, no task."""

import gc
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from loadtest.admission.demands import demand
from router.admission.line import Line
from router.admission.waiters import Waiter
from router.core import Demand, Standing

DEPTHS = (1_000, 100_000, 1_000_000)
NUM_TENANTS = 100
# The middle one of so many parts counts.
NUM_MEASURED, NUM_PARTS = 20_000, 5


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one depth: microseconds of CPU, and bytes of a waiter without its demand."""

    depth: int
    push_us: float
    grant_us: float
    entry_bytes: float


def measure(depth: int) -> Costs:
    """Fill the line, then push and grant so many more; the collector is off, as a router's runs seldom."""
    standings = [Standing(tenant=f"t{number}") for number in range(NUM_TENANTS)]
    demands = [demand("r", at * 1e-3, 600.0, standings[at % NUM_TENANTS]) for at in range(depth + NUM_MEASURED)]
    gc.collect()
    gc.disable()
    try:
        num_bytes = _bytes_of(demands[:depth])
        line = _filled(demands[:depth])
        starts = range(depth, depth + NUM_MEASURED, NUM_MEASURED // NUM_PARTS)
        pushed_us = median([_timed_us(partial(_push, line, demands, start)) for start in starts])
        granted_us = median([_timed_us(partial(_grant, line)) for _ in starts])
        return Costs(depth, pushed_us, granted_us, num_bytes / depth)
    finally:
        gc.enable()


def _bytes_of(demands: Sequence[Demand]) -> int:
    """What a line of them takes, as Python counts it."""
    tracemalloc.start()
    line = _filled(demands)
    num_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del line
    return num_bytes


def _filled(demands: Sequence[Demand]) -> Line[None]:
    line: Line[None] = Line()
    for at, each in enumerate(demands):
        line.join(each, None, 0.0, at)
    return line


def _push(line: Line[None], demands: Sequence[Demand], start: int) -> None:
    for at in range(start, start + NUM_MEASURED // NUM_PARTS):
        line.join(demands[at], None, 0.0, at)


def _grant(line: Line[None]) -> None:
    left = NUM_MEASURED // NUM_PARTS

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
    return (time.process_time() - began) / (NUM_MEASURED // NUM_PARTS) * 1e6
