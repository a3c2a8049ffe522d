"""What adapters cost: near ones less than far ones, and many at once more than few."""

import pytest

from loadtest.simulator.adapters import AdapterCosts
from loadtest.simulator.bounds import belady_loads


def test_one_that_lies_in_host_memory_loads_faster_and_the_oldest_goes() -> None:
    costs = AdapterCosts(num_bytes=100_000_000, num_host_slots=2, step_share=0.03)
    disk_s, host_s = 0.005 + 0.04, 0.0015 + 0.004
    loads = [costs.load_s(name) for name in ("a", "b", "a", "c", "a", "b")]
    assert loads == [pytest.approx(each) for each in (disk_s, disk_s, host_s, disk_s, host_s, disk_s)]


def test_a_step_is_slower_for_each_distinct_adapter() -> None:
    costs = AdapterCosts(1, 1, step_share=0.03)
    assert [costs.step_factor(number) for number in (0, 1, 4)] == [1.0, pytest.approx(1.03), pytest.approx(1.12)]


def test_the_fewest_loads_keep_what_is_needed_soonest() -> None:
    assert belady_loads("abcabc", 3) == 3
    assert belady_loads("abcabc", 2) == 4
    assert belady_loads("aabbab", 1) == 4
    assert belady_loads("", 2) == 0
