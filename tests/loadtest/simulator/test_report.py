"""Means, intervals and paired differences."""

import msgspec
import pytest

from loadtest.simulator.report import interval, paired
from tests.loadtest.simulator.test_capacity import RUN


def test_one_value_has_no_interval() -> None:
    assert interval([2.0]).half is None
    assert interval([2.0]).show(100, 1) == "200.0"


def test_an_interval_is_students() -> None:
    found = interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found.mean == 3.0
    # t of 4 degrees of freedom, 2.776, x the standard error, sqrt(2.5 / 5).
    assert found.half == pytest.approx(2.776 * 0.5**0.5)
    assert found.show(1, 2) == "3.00 ±1.96"


def test_pairs_are_taken_seed_by_seed() -> None:
    ours, theirs = (
        [msgspec.structs.replace(RUN, seed=seed, attainment=base + 0.1 * seed) for seed in range(3)]
        for base in (0.75, 0.7)
    )
    found = paired(ours, theirs)
    assert found.mean == pytest.approx(0.05)
    assert found.half == pytest.approx(0.0, abs=1e-9)
    assert (interval([run.attainment for run in ours]).half or 0.0) > 0.2
