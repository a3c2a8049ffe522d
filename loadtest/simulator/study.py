"""What one call of `pointsman-load sim` computes: a search or runs for each scenario and policy, from the cache where
they are there, in one process or in several. Knows scenarios, runs and the cache; prints nothing."""

import gc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import msgspec

from loadtest.simulator.cache import ResultCache, file_key
from loadtest.simulator.capacity import MIN_ATTAINMENT, Capacity, find_capacity
from loadtest.simulator.scenario import Scenario
from loadtest.simulator.sessions import Users
from loadtest.simulator.setup import Setup
from loadtest.simulator.simulate import simulate
from loadtest.simulator.summary import Summary, summarise
from loadtest.simulator.workload import Workload
from loadtest.trace import find_trace
from router.routing.recipes import files_of, is_recipe

# Of the load that was found: there a router shows whether it buys hits with latency.
CALM_SHARE = 0.7

Tell = Callable[[float], None]
"""Told how far a run is, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Task:
    """One policy on one scenario. `load` None searches for capacity, and `is_calm_too` runs at 70 % of it as well; else
    it runs at that load with each seed."""

    name: str
    scenario: Scenario
    policy: str
    load: float | None
    seeds: tuple[int, ...]
    cache_folder: Path | None
    is_calm_too: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """A task's result: the search and the calm run behind it, or one run for each seed."""

    task: Task
    runs: tuple[Summary, ...]
    capacity: Capacity | None = None
    calm: Summary | None = None


def find_all(tasks: Sequence[Task], num_processes: int, tell: Callable[[Task, float], None]) -> Iterator[Found]:
    """Results as they come; `tell` is told of each task how far it is."""
    if num_processes == 1:
        for task in tasks:
            found = find(task, partial(tell, task))
            tell(task, 1.0)
            yield found
        return
    with ProcessPoolExecutor(num_processes) as pool:
        futures = {pool.submit(find, task): task for task in tasks}
        for future in as_completed(futures):
            tell(futures[future], 1.0)
            yield future.result()


def find(task: Task, tell: Tell = lambda _: None) -> Found:
    attempt = partial(_attempt, task, tell=tell)
    if task.load is not None:
        return Found(task, tuple(attempt(task.load, seed, None) for seed in task.seeds))
    seed = task.seeds[0]
    capacity = find_capacity(task.scenario.load, lambda load: attempt(load, seed, MIN_ATTAINMENT))
    calm = None
    if task.is_calm_too and capacity.load is not None:
        calm = attempt(capacity.load * CALM_SHARE, seed, None)
    return Found(task, capacity.tried, capacity, calm)


def _attempt(task: Task, load: float, seed: int, min_attainment: float | None, tell: Tell) -> Summary:
    scenario = task.scenario
    parameters = [msgspec.to_builtins(scenario), _trace_key(scenario.files), load, seed, min_attainment]
    policy: str | None = task.policy
    if is_recipe(task.policy):
        parameters += [task.policy, file_key(files_of(Path(task.policy)))]
        policy = None  # it may be made of any

    def compute() -> Summary:
        workload = _workload(scenario, seed)
        setup = Setup(
            workload=workload,
            profile=scenario.engine,
            num_replicas=scenario.replicas,
            policy=task.policy,
            load=load,
            seed=seed,
            host_tokens=scenario.host_tokens,
            lora=scenario.lora,
            knowledge=scenario.knowledge,
            pairs=scenario.handing_over,
        )
        with _uncollected():
            finished = simulate(setup, min_attainment, on_done=tell)
        return summarise(finished, load, seed)

    is_paired = scenario.handing_over is not None
    return ResultCache(task.cache_folder).get(Summary, parameters, compute, policy, is_paired=is_paired)


@contextmanager
def _uncollected() -> Iterator[None]:
    """A run leaves few cycles behind, and looking for them takes a fifth of its time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@lru_cache(maxsize=2)
def _workload(scenario: Scenario, seed: int) -> Workload | Users:
    return scenario.workload(seed)


@lru_cache(maxsize=16)
def _trace_key(traces: tuple[str, ...]) -> str:
    return file_key(find_trace(name) for name in traces)
