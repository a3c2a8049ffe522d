"""The search: any monotonic attainment gives the highest load that is served, within the resolution."""

import math
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.simulator.capacity import RESOLUTION, find_capacity
from loadtest.simulator.summary import Percentiles, Summary

NONE = Percentiles(0.0, 0.0, 0.0, 0.0)
RUN = Summary(
    load=1.0,
    seed=0,
    num_requests=10,
    num_refused=0,
    attainment=1.0,
    goodput_per_s=1.0,
    hit_ratio=0.0,
    ttft_ms=NONE,
    tpot_ms=NONE,
    light_ttft_ms=NONE,
    imbalance=1.0,
    evictions=0,
    preemptions=0,
    adapter_loads=0,
    duration_s=1.0,
    is_aborted=False,
)


@dataclass
class Fleet:
    """Serves loads up to `knee`."""

    knee: float
    tried: list[float] = field(default_factory=list)

    def attempt(self, load: float) -> Summary:
        self.tried.append(load)
        return msgspec.structs.replace(RUN, load=load, attainment=0.95 if load <= self.knee else 0.5)


@given(st.floats(0.1, 20.0))
def test_it_finds_the_knee_wherever_it_is(knee: float) -> None:
    fleet = Fleet(knee)
    found = find_capacity(1.0, fleet.attempt)
    assert found.load is not None
    assert found.load <= knee < found.load * RESOLUTION * 1.0001
    assert found.best is not None
    assert found.best.load == found.load
    assert [run.load for run in found.tried] == fleet.tried
    assert len(fleet.tried) == len(set(fleet.tried)) <= 6 + abs(math.log(knee, 1.25))


def test_a_workload_too_short_to_fill_the_fleet_gives_a_least_capacity() -> None:
    assert find_capacity(1.0, Fleet(math.inf).attempt).is_least
    assert not find_capacity(1.0, Fleet(3.0).attempt).is_least


def test_a_fleet_that_serves_nothing_has_no_capacity() -> None:
    found = find_capacity(1.0, Fleet(1e-9).attempt)
    assert found.load is None
    assert found.best is None


def test_an_aborted_run_is_not_served_whatever_it_attained_so_far() -> None:
    found = find_capacity(1.0, lambda load: msgspec.structs.replace(RUN, load=load, is_aborted=load > 1.2))
    assert found.load == pytest.approx(1.2, rel=0.03)
