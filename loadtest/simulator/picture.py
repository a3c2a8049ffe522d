"""Draws what was found, scenario by scenario: capacity, attainment by load, hit ratios under their limits. Knows
matplotlib."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from loadtest.errors import UsageError
from loadtest.simulator.bounds import Bounds
from loadtest.simulator.capacity import MIN_ATTAINMENT
from loadtest.simulator.study import Found

try:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
except ImportError:
    raise UsageError("--png: needs matplotlib; install it with: pip install 'pointsman[load]'") from None

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BLUE, _GREY, _LIGHT = "#1f5fa8", "#8a8a8a", "#e6e6e6"
_LIMITS = {"infinite": ":", "belady_pooled": "--", "lru_pooled": "-"}


def draw(path: Path, found: Sequence[Found], limits: Mapping[str, Bounds]) -> None:
    """Write the picture as PNG: a row of three panels for each scenario."""
    groups = [(name, list(group)) for name, group in groupby(found, key=lambda each: each.task.name)]
    most = max(len(group) for _, group in groups)
    figure = Figure(figsize=(15, len(groups) * (1.6 + 0.28 * most)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(groups), 3, squeeze=False)
    for (left, middle, right), (name, group) in zip(panels, groups, strict=True):
        _loads(left, name, group)
        _attainment(middle, group)
        _hits(right, group, limits[name])
    figure.savefig(path, format="png", dpi=110)


def _loads(axes: "Axes", name: str, group: Sequence[Found]) -> None:
    unit = group[0].task.scenario.load_unit
    if group[0].capacity is not None:
        axes.set_title(f"{name}: capacity, {unit}", fontsize=9, loc="left")
        _bars(axes, group, [(each.capacity.load or 0.0) if each.capacity is not None else 0.0 for each in group])
    else:
        axes.set_title(f"{name}: goodput, requests a second", fontsize=9, loc="left")
        _bars(axes, group, [sum(run.goodput_per_s for run in each.runs) / len(each.runs) for each in group])


def _attainment(axes: "Axes", group: Sequence[Found]) -> None:
    """By load, of runs that were not stopped early: those say less than the truth."""
    axes.set_title("share within the objective, by load", fontsize=9, loc="left")
    axes.axhline(MIN_ATTAINMENT, color=_GREY, linewidth=0.8)
    for each in group:
        runs = sorted((run for run in each.runs if not run.is_aborted), key=lambda run: run.load)
        points = [run.load for run in runs], [run.attainment for run in runs]
        axes.plot(*points, marker="o", markersize=3, linewidth=1, label=each.task.policy)
    axes.legend(fontsize=6, frameon=False)
    _quiet_frame(axes)


def _hits(axes: "Axes", group: Sequence[Found], limits: Bounds) -> None:
    axes.set_title("cached share of prompt tokens (lines: limits)", fontsize=9, loc="left")
    best = [each.capacity.best if each.capacity is not None else each.runs[0] for each in group]
    _bars(axes, group, [run.hit_ratio if run is not None else 0.0 for run in best])
    for name, style in _LIMITS.items():
        if getattr(limits, name) is None:
            continue
        axes.axvline(getattr(limits, name), color=_GREY, linestyle=style, linewidth=1, label=name.replace("_", " "))
    axes.legend(fontsize=6, frameon=False)


def _bars(axes: "Axes", group: Sequence[Found], values: Sequence[float]) -> None:
    names = [each.task.policy for each in group]
    axes.barh(names, values, color=_BLUE, height=0.65)
    axes.invert_yaxis()
    for place, value in enumerate(values):
        axes.annotate(f" {value:.3g}", (value, place), va="center", fontsize=7)
    axes.tick_params(axis="y", labelsize=7)
    _quiet_frame(axes)


def _quiet_frame(axes: "Axes") -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", color=_LIGHT, linewidth=0.7)
    axes.set_axisbelow(True)
