"""`pointsman-load sim`: from settings to tasks, results and what is shown of them. Knows the order of steps."""

import importlib
import random
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from loadtest.errors import UsageError
from loadtest.simulator import report
from loadtest.simulator.bounds import Bounds, bounds_of
from loadtest.simulator.cache import ResultCache, default_folder
from loadtest.simulator.scenario import Scenario, checked, load_scenario
from loadtest.simulator.settings import SimSettings
from loadtest.simulator.station import MAX_IN_FLIGHT
from loadtest.simulator.study import Task, find_all
from router.plugins import PluginError
from router.routing.presets import NAMES, open_parts, open_policy

TRACE_REPLICAS = 8


def run(settings: SimSettings) -> int:
    """Exit code 0. Raises UsageError."""
    picture = importlib.import_module("loadtest.simulator.picture") if settings.png else None
    tasks = plan(settings)
    with Shown.on_terminal(tasks, is_quiet=settings.quiet) as shown:
        found = sorted(find_all(tasks, settings.jobs, shown.tell), key=lambda each: tasks.index(each.task))
    limits = {task.name: _bounds(task) for task in tasks}
    report.show(found, limits, settings.format)
    if picture is not None:
        picture.draw(settings.png, found, limits)
    return 0


def plan(settings: SimSettings) -> list[Task]:
    """Every policy on every scenario. Raises UsageError for what there is not."""
    policies = _policies(settings)
    seeds = tuple(range(settings.seed, settings.seed + settings.seeds))
    return [
        Task(
            name=name,
            scenario=scenario,
            policy=policy,
            load=None if settings.capacity else settings.load or scenario.load,
            seeds=seeds,
            cache_folder=default_folder() if settings.cache else None,
            is_calm_too=settings.calm,
        )
        for name, scenario in _scenarios(settings)
        for policy in policies
    ]


class Shown(AbstractContextManager["Shown"]):
    """A bar for the whole, and what is being simulated beside it; to standard error, where that is a terminal."""

    def __init__(self, tasks: Sequence[Task], bar: Progress | None) -> None:
        self._shares = dict.fromkeys(tasks, 0.0)
        self._bar = bar
        self._line: TaskID | None = bar.add_task("", total=len(tasks)) if bar is not None else None

    @classmethod
    def on_terminal(cls, tasks: Sequence[Task], *, is_quiet: bool) -> "Shown":
        console = Console(stderr=True)
        if is_quiet or not console.is_terminal:
            return cls(tasks, None)
        columns = (BarColumn(), TextColumn("{task.completed:.2f}/{task.total}"), TimeElapsedColumn())
        return cls(tasks, Progress(*columns, TextColumn("{task.description}"), console=console))

    def tell(self, task: Task, share: float) -> None:
        """How far the run under way is; a search takes several."""
        if self._bar is None or self._line is None:
            return
        self._shares[task] = share
        done = sum(self._shares.values())
        self._bar.update(self._line, completed=done, description=f"{task.name} {task.policy}")

    def __enter__(self) -> "Shown":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _policies(settings: SimSettings) -> tuple[str, ...]:
    """Those that are named, recipes by their files; `all` stands for every one there is, round robin first."""
    asked = settings.policies()
    if asked == ("all",):
        return ("round-robin", *(name for name in NAMES if name != "round-robin"))
    try:
        for policy in asked:
            open_policy(policy, open_parts(), random.Random(), MAX_IN_FLIGHT)
    except PluginError as error:
        raise UsageError(f"--policy: {error}") from None
    return asked


def _scenarios(settings: SimSettings) -> list[tuple[str, Scenario]]:
    if settings.trace is None:
        return [(name, _changed(settings, load_scenario(name))) for name in settings.scenario]
    scenario = Scenario(
        about=f"the trace {settings.trace}",
        profile=settings.profile,
        replicas=TRACE_REPLICAS,
        traces=(settings.trace,),
    )
    return [(settings.trace, _changed(settings, scenario))]


def _changed(settings: SimSettings, scenario: Scenario) -> Scenario:
    """What flags say goes before the file."""
    fleet = _given(settings, "replicas", "host_tokens", "half")
    known = _given(settings, "routers", "metrics_interval_ms", "kv_event_delay_ms")
    if not settings.kv_events:
        known["kv_events"] = False
    if not settings.fair_shares:
        known["fair_shares"] = False
    halves = _given(settings, "prefill", "decode")
    if settings.kv_gigabytes_per_s is not None:
        halves["gigabytes_per_s"] = settings.kv_gigabytes_per_s
    knowledge = msgspec.structs.replace(scenario.knowledge, **known)
    pairs = msgspec.structs.replace(scenario.pairs, **halves)
    return checked(msgspec.structs.replace(scenario, **fleet, pairs=pairs, knowledge=knowledge), "a flag")


def _given(settings: SimSettings, *names: str) -> dict[str, Any]:
    values = {name: getattr(settings, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _bounds(task: Task) -> Bounds:
    parameters = [msgspec.to_builtins(task.scenario), task.seeds[0]]
    return ResultCache(task.cache_folder).get(Bounds, parameters, lambda: bounds_of(task.scenario, task.seeds[0]))
