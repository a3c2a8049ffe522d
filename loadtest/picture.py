"""Draws a run: the distributions of TTFT and ITL, and the requests over time. The only file that knows matplotlib."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from loadtest.errors import UsageError
from loadtest.sample import Measured
from loadtest.summary import Summary, percentile

try:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
except ImportError:
    raise UsageError("--png: needs matplotlib; install it with: pip install 'pointsman[load]'") from None

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BLUE, _ORANGE, _RED, _GREY = "#1f5fa8", "#d9822b", "#c0392b", "#8a8a8a"
_LEAST_MS = 0.001
_MOST_BINS, _FEWEST_BINS, _REQUESTS_PER_BIN = 40, 10, 8
_MARKS = ((0.5, "p50"), (0.9, "p90"), (0.99, "p99"))


def draw(path: Path, measured: Measured, summary: Summary) -> None:
    """Write the picture as PNG."""
    figure = Figure(figsize=(12, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    good = [sample for sample in measured.samples if sample.failure is None]
    ttft, itl, time_line = figure.subplots(1, 3)
    _distribution(ttft, "TTFT", [sample.ttft_s for sample in good if sample.ttft_s is not None], _BLUE)
    _distribution(itl, "ITL", [gap for sample in good for gap in sample.gaps_s], _ORANGE)
    _requests_over_time(time_line, measured)
    figure.suptitle(_title(summary), fontsize=11)
    figure.savefig(path, format="png", dpi=130)


def _distribution(axes: "Axes", name: str, values_s: Sequence[float], colour: str) -> None:
    """The share of values below each time, on a logarithmic time axis, with the percentiles marked."""
    axes.set_title(name)
    axes.set_xlabel("ms")
    axes.set_ylabel("share of " + ("requests" if name == "TTFT" else "gaps"))
    _quiet_frame(axes)
    if not values_s:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color=_GREY)
        return
    # Gaps of zero happen (two tokens in one packet); a logarithmic axis begins to their right.
    ordered = [max(value * 1000, _LEAST_MS) for value in sorted(values_s)]
    shares = [(number + 1) / len(ordered) for number in range(len(ordered))]
    axes.plot(ordered, shares, color=colour, drawstyle="steps-post", linewidth=1.8)
    for share, label in _MARKS:
        value = percentile(ordered, share)
        axes.plot([value], [share], marker="o", color=colour, markersize=4)
        axes.annotate(f"{label} {value:,.1f}", (value, share), xytext=(6, -11), textcoords="offset points", fontsize=8)
    _time_axis(axes, percentile(ordered, 0.01) * 0.8, ordered[-1] * 1.2)
    axes.set_ylim(0, 1.02)


def _time_axis(axes: "Axes", left_ms: float, right_ms: float) -> None:
    """A logarithmic axis that reads in plain numbers: 1, 2, 5, 10, or whole decades where those would crowd."""
    axes.set_xscale("log")
    axes.set_xlim(left_ms, right_ms)
    steps = (1.0, 2.0, 5.0) if right_ms < 200 * left_ms else (1.0,)
    axes.xaxis.set_major_locator(LogLocator(subs=steps))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.xaxis.set_minor_locator(NullLocator())


def _requests_over_time(axes: "Axes", measured: Measured) -> None:
    """Requests that ended, per second, in equal bins over the run; failures on top."""
    axes.set_title("Requests over time")
    axes.set_xlabel("s since the start")
    axes.set_ylabel("ended per second")
    _quiet_frame(axes)
    num_bins = max(_FEWEST_BINS, min(_MOST_BINS, len(measured.samples) // _REQUESTS_PER_BIN))
    width_s = max(measured.ended_s - measured.started_s, 1e-9) / num_bins
    good, bad = [0.0] * num_bins, [0.0] * num_bins
    for sample in measured.samples:
        place = min(int((sample.ended_s - measured.started_s) / width_s), num_bins - 1)
        (bad if sample.failure else good)[place] += 1 / width_s
    starts = [number * width_s for number in range(num_bins)]
    axes.bar(starts, good, width=width_s, align="edge", color=_BLUE, label="succeeded")
    if any(bad):
        axes.bar(starts, bad, width=width_s, align="edge", bottom=good, color=_RED, label="failed")
        axes.legend(frameon=False, fontsize=8, ncols=2, loc="upper right")
    # Room for the legend above the tallest bar.
    axes.set_ylim(0, 1.15 * max(map(sum, zip(good, bad, strict=True))) or 1)


def _quiet_frame(axes: "Axes") -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e6e6e6", linewidth=0.7)
    axes.set_axisbelow(True)


def _title(summary: Summary) -> str:
    return (
        f"{summary.model}: {summary.num_succeeded} succeeded, {summary.num_failed} failed in "
        f"{summary.duration_s:.1f} s ({summary.requests_per_s:.2f} requests/s, "
        f"{summary.output_tokens.per_s:,.0f} output tokens/s)"
    )
