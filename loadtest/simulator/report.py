"""Shows what was found: a table, JSON or Markdown. Knows rich; computes means and intervals, nothing else."""

import json
from collections.abc import Iterator, Mapping, Sequence
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
_COLUMNS = (
    ("attained %", "attainment", 100, 1),
    ("good/s", "goodput_per_s", 1, 2),
    ("hit %", "hit_ratio", 100, 1),
    ("TTFT p50", "ttft_ms_p50", 1, 0),
    ("p90", "ttft_ms_p90", 1, 0),
    ("p99", "ttft_ms_p99", 1, 0),
    ("TPOT p50", "tpot_ms_p50", 1, 0),
    ("p90", "tpot_ms_p90", 1, 0),
    ("p99 ms", "tpot_ms_p99", 1, 0),
    ("imbalance", "imbalance", 1, 2),
    ("evicted", "evictions", 1, 0),
    ("preempted", "preemptions", 1, 0),
)
_PIPE_WIDTH = 180  # a file or a pipe has no edge to wrap at


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
        lines = [_cells(each, rows[0]) for each in rows]
        title = f"{name}: {rows[0].task.scenario.about}"
        if format == "markdown":
            print("\n".join(_markdown(title, _headers(rows[0]), lines, _limits(limits[name]))))
        else:
            console.print(_table(title, _headers(rows[0]), lines, _limits(limits[name])))


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
        found_load = {"capacity": found.capacity.load, "load_unit": task.scenario.load_unit}
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
    latencies = {f"{name}_{key}": value for name in ("ttft_ms", "tpot_ms") for key, value in told.pop(name).items()}
    del told["seed"], told["is_aborted"]
    return told | latencies


def _headers(found: Found) -> list[str]:
    unit, shared = found.task.scenario.load_unit, [header for header, *_ in _columns(found)]
    if found.capacity is not None:
        return ["policy", f"capacity {unit}", "vs first", *shared, "hit % at 70 %"]
    return ["policy", f"load {unit}", *shared, "attained vs first"]


def _columns(found: Found) -> tuple[tuple[str, str, float, int], ...]:
    """Header, name of the number, its scale and digits."""
    return _COLUMNS if found.task.scenario.adapters is None else (*_COLUMNS, ("adapter loads", "adapter_loads", 1, 0))


def _cells(found: Found, first: Found) -> list[str]:
    if found.capacity is None:
        against = "" if found is first else paired(found.runs, first.runs).show(100, 1)
        return [found.task.policy, f"{found.task.load:g}", *_numbers(found, found.runs), against]
    load, best = found.capacity.load, found.capacity.best
    if load is None or best is None:
        return [found.task.policy, "none", *[""] * (len(_headers(found)) - 2)]
    base = first.capacity.load if first.capacity is not None else None
    against = f"{load / base:.2f}" if base else ""
    calm = "" if found.calm is None else f"{found.calm.hit_ratio * 100:.1f}"
    return [found.task.policy, f"{load:.3g}", against, *_numbers(found, (best,)), calm]


def _numbers(found: Found, runs: Sequence[Summary]) -> Iterator[str]:
    rows = [_flat(run) for run in runs]
    for _, name, scale, digits in _columns(found):
        yield interval([row[name] for row in rows]).show(scale, digits)


def _limits(limits: Bounds) -> str:
    names = {"infinite": "infinite cache", "belady_pooled": "Belady pooled", "lru_pooled": "LRU pooled"}
    hits = [f"{text} {value:.1%}" for name, text in names.items() if (value := getattr(limits, name)) is not None]
    told = [f"Hit limits: {', '.join(hits)}."] if hits else []
    if limits.adapter_loads is not None:
        told.append(f"Adapter loads, at the least: {limits.adapter_loads}.")
    return " ".join(told)


def _table(title: str, headers: Sequence[str], lines: Sequence[Sequence[str]], caption: str) -> Table:
    table = Table(headers[0], title=title, caption=caption, title_justify="left", caption_justify="left")
    for header in headers[1:]:
        table.add_column(header, justify="right")
    for line in lines:
        table.add_row(*line)
    return table


def _markdown(title: str, headers: Sequence[str], lines: Sequence[Sequence[str]], caption: str) -> Iterator[str]:
    yield f"\n### {title}\n"
    for line in (headers, ["---", *["---:"] * (len(headers) - 1)], *lines):
        yield f"| {' | '.join(line)} |"
    yield f"\n{caption}"
