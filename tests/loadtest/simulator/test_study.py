"""Searches and runs of one call: the same in one process or several, and from the cache."""

from dataclasses import replace
from pathlib import Path

from loadtest.simulator.capacity import MIN_ATTAINMENT, RESOLUTION
from loadtest.simulator.scenario import load_scenario
from loadtest.simulator.study import CALM_SHARE, Task, find, find_all


def task(scenario: Path, policy: str = "least-request", load: float | None = None, seeds: int = 1) -> Task:
    return Task("small", load_scenario(str(scenario)), policy, load, tuple(range(seeds)), scenario.parent / "cache")


def test_a_search_finds_a_load_that_is_served_where_more_is_not(scenario: Path) -> None:
    found = find(task(scenario))
    assert found.capacity is not None
    assert found.capacity.load is not None
    assert found.capacity.best is not None
    assert found.capacity.best.attainment >= MIN_ATTAINMENT
    more = [run for run in found.runs if run.load > found.capacity.load]
    assert min(run.load for run in more) <= found.capacity.load * RESOLUTION
    assert all(run.is_aborted or run.attainment < MIN_ATTAINMENT for run in more)
    assert found.calm is None


def test_the_calm_run_is_at_a_share_of_what_was_found(scenario: Path) -> None:
    found = find(replace(task(scenario), is_calm_too=True))
    assert found.capacity is not None
    assert found.capacity.load is not None
    assert found.calm is not None
    assert found.calm.load == found.capacity.load * CALM_SHARE


def test_several_processes_find_what_one_finds_and_the_cache_has_it(scenario: Path) -> None:
    tasks = [task(scenario, policy, load=3.0, seeds=2) for policy in ("round-robin", "pointsman")]
    alone = [each.runs for each in find_all(tasks, 1, lambda *_: None)]
    cached = sorted((scenario.parent / "cache").iterdir())
    assert len(cached) == 4
    together = {each.task.policy: each.runs for each in find_all(tasks, 2, lambda *_: None)}
    assert [together[each.policy] for each in tasks] == alone
    for path in cached:
        path.unlink()
    anew = {each.task.policy: each.runs for each in find_all(tasks, 2, lambda *_: None)}
    assert anew == together


def test_progress_of_a_task_is_told(scenario: Path) -> None:
    told: list[float] = []
    find(task(scenario, load=3.0), told.append)
    assert told
    assert all(0.0 <= share <= 1.0 for share in told)
