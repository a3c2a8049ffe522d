"""The search for capacity: the highest load at which enough requests meet the objective. Knows attainments by load;
knows nothing of how a load is tried."""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

from loadtest.simulator.summary import Summary

MIN_ATTAINMENT = 0.9
# Loads closer than this ratio are one.
RESOLUTION = 1.024
# Steps, as a ratio, by which it looks for a load on the other side; and how many before it gives up.
_STEP = 1.25
_MOST_STEPS = 30


@dataclass(frozen=True, slots=True)
class Capacity:
    """`best` is the run at `load`; both None where not even the least load could be served. `tried`: all runs."""

    load: float | None
    best: Summary | None
    tried: tuple[Summary, ...]

    @property
    def is_least(self) -> bool:
        """Whether no load was found that is too high: a workload too short to fill the fleet."""
        return self.load is not None and all(run.load <= self.load for run in self.tried)


def find_capacity(
    start: float, attempt: Callable[[float], Summary], resolution: float = RESOLUTION, step: float = _STEP
) -> Capacity:
    """Go from `start` up or down until the answer lies between two loads, then bisect, on a logarithmic scale."""
    tried: list[Summary] = []

    def is_served(load: float) -> bool:
        tried.append(attempt(load))
        return not tried[-1].is_aborted and tried[-1].attainment >= MIN_ATTAINMENT

    low, high = _enclose(start, is_served, step)
    while low and high / low > resolution:
        middle = sqrt(low * high)
        if is_served(middle):
            low = middle
        else:
            high = middle
    best = next((run for run in tried if run.load == low), None)
    return Capacity(low or None, best, tuple(tried))


def _enclose(start: float, is_served: Callable[[float], bool], step: float) -> tuple[float, float]:
    """The highest load that was served and the lowest that was not, a step apart; 0 where none is served."""
    load, goes_up = start, is_served(start)
    for _ in range(_MOST_STEPS):
        following = load * step if goes_up else load / step
        if is_served(following) is not goes_up:
            return (load, following) if goes_up else (following, load)
        load = following
    return (load, load) if goes_up else (0.0, load)
