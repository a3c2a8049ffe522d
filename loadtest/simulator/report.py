"""Shows what was found: a table, JSON or Markdown. Knows rich; computes means and intervals, nothing else."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import sqrt
from statistics import fmean, stdev
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from loadtest.simulator.bounds import Bounds
from loadtest.simulator.study import Found
from loadtest.simulator.summary import Summary

# Two-sided 95 % of Student's t by degrees of freedom; beyond, that of the last.
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
Column = tuple[str, tuple[str, ...], float, int]
"""Header, names of the numbers in a cell, their scale and digits."""
_SERVED: tuple[Column, ...] = (
    ("attained %", ("attainment",), 100, 1),
    ("hit %", ("hit_ratio",), 100, 1),
    ("TTFT ms p50/90/99", ("ttft_ms_p50", "ttft_ms_p90", "ttft_ms_p99"), 1, 0),
    ("TPOT p50/90/99", ("tpot_ms_p50", "tpot_ms_p90", "tpot_ms_p99"), 1, 0),
)
_FLEET: tuple[Column, ...] = (
    ("good/s", ("goodput_per_s",), 1, 2),
    ("imbalance", ("imbalance",), 1, 2),
    ("evicted", ("evictions",), 1, 0),
    ("preempted", ("preemptions",), 1, 0),
)
_ADAPTERS: tuple[Column, ...] = (("adapter loads", ("adapter_loads",), 1, 0),)
_PAIRS: tuple[Column, ...] = (("handed over", ("handovers",), 1, 0),)
_TENANTS: tuple[Column, ...] = (("light tenants' TTFT p99", ("light_ttft_ms_p99",), 1, 0),)
_PIPE_WIDTH = 120  # a file or a pipe has no edge to wrap at


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and half of its 95 % interval; None where there is one value only."""

    mean: float
    half: float | None

    def show(self, scale: float, digits: int) -> str:
        text = f"{self.mean * scale:,.{digits}f}"
        return text if self.half is None else f"{text} ±{self.half * scale:,.{digits}f}"


def show(found: Sequence[Found], limits: Mapping[str, Bounds], format: str) -> None:
    """Print all results, a row for each scenario and policy."""
    if format == "json":
        print(json.dumps([row(each, limits[each.task.name]) for each in found], indent=1))
        return
    console = Console(width=None if Console().is_terminal else _PIPE_WIDTH)
    for name, group in groupby(found, key=lambda each: each.task.name):
        rows = list(group)
        served, fleet = ([cells(each, rows[0]) for each in rows] for cells in (_served_cells, _fleet_cells))
        title = f"{name}: {rows[0].task.scenario.about}"
        if format == "markdown":
            headers = [*_served_headers(rows[0]), *_fleet_headers(rows[0])]
            print("\n".join(_markdown(title, headers, map(list.__add__, served, fleet), _limits(limits[name]))))
        else:
            console.print(_table(title, _served_headers(rows[0]), served, ""))
            named = [[cells[0], *more] for cells, more in zip(served, fleet, strict=True)]
            console.print(_table("", ["policy", *_fleet_headers(rows[0])], named, _limits(limits[name])))


def row(found: Found, limits: Bounds) -> dict[str, Any]:
    """One result as JSON has it. Of several seeds: means, with the halves of their 95 % intervals beside them."""
    task = found.task
    named = {"scenario": task.name, "policy": task.policy, "replicas": task.scenario.replicas}
    bounds = {"bounds": msgspec.to_builtins(limits)}
    if found.capacity is not None:
        calm = None if found.calm is None else found.calm.hit_ratio
        numbers = _flat(found.capacity.best) if found.capacity.best is not None else {}
        attempts = [
            {"load": run.load, "attainment": run.attainment, "is_aborted": run.is_aborted} for run in found.runs
        ]
        found_load = {
            "capacity": found.capacity.load,
            "is_at_least": found.capacity.is_least,
            "load_unit": task.scenario.load_unit,
        }
        return named | found_load | numbers | {"hit_ratio_at_70_percent": calm, "tried": attempts} | bounds
    columns = [_flat(run) for run in found.runs]
    intervals = {name: interval([column[name] for column in columns]) for name in columns[0]}
    means = {name: each.mean for name, each in intervals.items()}
    halves = {name: each.half for name, each in intervals.items() if each.half is not None and name != "load"}
    return named | {"seeds": list(task.seeds)} | means | ({"ci95": halves} if halves else {}) | bounds


def interval(values: Sequence[float]) -> Interval:
    """By Student's t."""
    if len(values) < 2:
        return Interval(values[0], None)
    t = _T95[min(len(values) - 1, len(_T95)) - 1]
    return Interval(fmean(values), t * stdev(values) / sqrt(len(values)))


def paired(runs: Sequence[Summary], others: Sequence[Summary]) -> Interval:
    """The difference of attainments, seed by seed: the same arrivals met both."""
    return interval([run.attainment - other.attainment for run, other in zip(runs, others, strict=True)])


def _flat(run: Summary) -> dict[str, float]:
    told: dict[str, Any] = msgspec.to_builtins(run)
    latencies = {
        f"{name}_{key}": value
        for name in ("ttft_ms", "tpot_ms", "light_ttft_ms")
        for key, value in told.pop(name).items()
    }
    del told["seed"], told["is_aborted"]
    return told | latencies


def _served_headers(found: Found) -> list[str]:
    unit, is_search = found.task.scenario.load_unit, found.capacity is not None
    first = [f"capacity {unit}", "x first"] if is_search else [f"load {unit}", "points on first"]
    return ["policy", *first, *(header for header, *_ in _SERVED)]


def _fleet_headers(found: Found) -> list[str]:
    return [*(header for header, *_ in _fleet_columns(found)), *(["hit % at 70 %"] if found.task.is_calm_too else [])]


def _fleet_columns(found: Found) -> tuple[Column, ...]:
    scenario = found.task.scenario
    columns = _FLEET + _ADAPTERS * (scenario.adapters is not None) + _TENANTS * (scenario.prefixes_of is not None)
    return columns + _PAIRS * (scenario.handing_over is not None)


def _served_cells(found: Found, first: Found) -> list[str]:
    runs = _shown(found)
    if found.capacity is None:
        against = "" if found is first else paired(found.runs, first.runs).show(100, 1)
        return [found.task.policy, f"{found.task.load:g}", against, *_cells(_SERVED, runs)]
    if found.capacity.load is None:
        return [found.task.policy, "none", "", *[""] * len(_SERVED)]
    base = first.capacity.load if first.capacity is not None else None
    against = f"{found.capacity.load / base:.2f}" if base else ""
    sign = ">" * found.capacity.is_least
    return [found.task.policy, f"{sign}{found.capacity.load:.3g}", against, *_cells(_SERVED, runs)]


def _fleet_cells(found: Found, first: Found) -> list[str]:
    runs, columns = _shown(found), _fleet_columns(found)
    calm = [""] if found.calm is None else [f"{found.calm.hit_ratio * 100:.1f}"]
    return [*(_cells(columns, runs) if runs else [""] * len(columns)), *(calm if found.task.is_calm_too else [])]


def _shown(found: Found) -> Sequence[Summary]:
    """The run at capacity, where that was searched; else every seed's."""
    if found.capacity is None:
        return found.runs
    return () if found.capacity.best is None else (found.capacity.best,)


def _cells(columns: Sequence[Column], runs: Sequence[Summary]) -> list[str]:
    """Means; where a cell has one number only, with its interval."""
    rows = [_flat(run) for run in runs]
    cells = []
    for _, names, scale, digits in columns:
        values = [interval([row[name] for row in rows]) for name in names]
        if len(values) == 1:
            cells.append(values[0].show(scale, digits))
        else:
            cells.append("/".join(f"{value.mean * scale:.{digits}f}" for value in values))
    return cells


def _limits(limits: Bounds) -> str:
    names = {"infinite": "infinite cache", "belady_pooled": "Belady pooled", "lru_pooled": "LRU pooled"}
    hits = [f"{text} {value:.1%}" for name, text in names.items() if (value := getattr(limits, name)) is not None]
    told = [f"Hit limits: {', '.join(hits)}."] if hits else []
    if limits.adapter_loads is not None:
        told.append(f"Adapter loads, at the least: {limits.adapter_loads}.")
    return " ".join(told)


def _table(title: str, headers: Sequence[str], lines: Iterable[Sequence[str]], caption: str) -> Table:
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
    table.add_column(headers[0], no_wrap=True)
    for header in headers[1:]:
        table.add_column(header, justify="right")
    for line in lines:
        table.add_row(*line)
    return table


def _markdown(title: str, headers: Sequence[str], lines: Iterable[Sequence[str]], caption: str) -> Iterator[str]:
    yield f"\n### {title}\n"
    for line in (headers, ["---", *["---:"] * (len(headers) - 1)], *lines):
        yield f"| {' | '.join(line)} |"
    yield f"\n{caption}"
