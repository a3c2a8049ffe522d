"""Draws the CPU times as bars, one panel a measurement. Knows matplotlib; computes nothing."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from loadtest.errors import UsageError
from loadtest.peers.launch import Row
from loadtest.peers.results import Figures, ratios, yardstick_of

try:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
except ImportError:
    raise UsageError("--png: needs matplotlib; install it with: pip install 'pointsman[load]'") from None

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_OURS, _OTHERS, _FAULTY = "#1f5fa8", "#b9c2cb", "#c0392b"
_PANELS = {
    "0.5 KB request": "cpu_us_500b",
    "8 KB request": "cpu_us_8k",
    "64 KB request": "cpu_us_64k",
    "streamed event": "cpu_us_event",
}


def draw(path: Path, table: Mapping[Row, Figures]) -> None:
    """Write the picture as PNG. Rows are in one order in all panels: cheapest small request on top."""
    measured = {row: figures for row, figures in table.items() if figures.num_rounds}
    ordered = sorted(measured, key=lambda row: measured[row].cpu_us_500b or 0.0, reverse=True)
    figure = Figure(figsize=(15, 1.8 + 0.32 * max(len(ordered), 3)), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (title, name) in zip(figure.subplots(1, len(_PANELS), sharey=True), _PANELS.items(), strict=True):
        _panel(axes, title, name, {row: measured[row] for row in ordered}, yardstick_of(table))
    figure.suptitle("CPU time on one core, µs (times nginx's); shorter is better, scales are logarithmic", fontsize=11)
    figure.savefig(path, format="png", dpi=130)


def _panel(axes: "Axes", title: str, name: str, table: Mapping[Row, Figures], yardstick: Figures | None) -> None:
    axes.set_title(title, fontsize=10)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.grid(axis="x", color="#e6e6e6", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8)
    values = [getattr(figures, name) or 0.0 for figures in table.values()]
    known = [value for value in values if value > 0]
    if not known:
        return
    places = range(len(values))
    axes.barh(places, values, color=[_colour(row, figures) for row, figures in table.items()], height=0.72)
    axes.set_yticks(places, [_label(row, figures) for row, figures in table.items()])
    axes.set_xscale("log")
    # Room to the right for the labels of the longest bars.
    axes.set_xlim(min(known) / 2, max(known) * (max(known) / min(known) * 2) ** 0.55)
    axes.xaxis.set_major_locator(LogLocator())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    for place, figures in zip(places, table.values(), strict=True):
        axes.annotate(_cost(figures, name, yardstick), (max(values[place], min(known) / 2), place), xytext=(3, 0),
                      textcoords="offset points", va="center", fontsize=8)  # fmt: skip


def _label(row: Row, figures: Figures) -> str:
    return f"{row.name} (errors)" if figures.num_errors else row.name


def _colour(row: Row, figures: Figures) -> str:
    if figures.num_errors:
        return _FAULTY
    return _OURS if row.is_ours else _OTHERS


def _cost(figures: Figures, name: str, yardstick: Figures | None) -> str:
    value = getattr(figures, name)
    if value is None:
        return "not measured"
    ratio = ratios(figures, yardstick).get(name)
    return f"{value:,.1f}" + (f"  ({ratio:.1f}x)" if ratio is not None else "")
