"""The search for capacity: the highest load at which enough requests meet the objective. Knows attainments by load;
knows nothing of how a load is tried."""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

from loadtest.simulator.summary import Summary

MIN_ATTAINMENT = 0.9
# Loads closer than this ratio are one.
RESOLUTION = 1.024
# How far beyond the first range it looks, as a ratio, and how often.
_WIDENING = 1.5
_MOST_WIDENINGS = 8


@dataclass(frozen=True, slots=True)
class Capacity:
    """`best` is the run at `load`; both None where not even the least load could be served. `tried`: all runs."""

    load: float | None
    best: Summary | None
    tried: tuple[Summary, ...]


def find_capacity(loads: tuple[float, float], attempt: Callable[[float], Summary]) -> Capacity:
    """Bisect between the loads, on a logarithmic scale; the range widens where the answer lies beyond it."""
    tried: list[Summary] = []

    def is_served(load: float) -> bool:
        tried.append(attempt(load))
        return not tried[-1].is_aborted and tried[-1].attainment >= MIN_ATTAINMENT

    low, high = loads
    middle = sqrt(low * high)
    if is_served(middle):
        low, high = _widen(middle, high, is_served, is_up=True)
    else:
        high, low = _widen(middle, low, is_served, is_up=False)
    while low and high / low > RESOLUTION:
        middle = sqrt(low * high)
        if is_served(middle):
            low = middle
        else:
            high = middle
    best = next((run for run in tried if run.load == low), None)
    return Capacity(low or None, best, tuple(tried))


def _widen(inner: float, outer: float, is_served: Callable[[float], bool], *, is_up: bool) -> tuple[float, float]:
    """A load on either side of capacity: `inner` is on the one, and `outer` moves until it is on the other.

    Returns the last on the inner side and the first beyond; 0 where there is none below.
    """
    for _ in range(_MOST_WIDENINGS):
        if is_served(outer) is not is_up:
            return inner, outer
        inner, outer = outer, outer * _WIDENING if is_up else outer / _WIDENING
    return (inner, inner) if is_up else (inner, 0.0)
