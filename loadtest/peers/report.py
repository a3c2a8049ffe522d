"""Shows what was measured: a table with a plot of bars, or JSON. Knows rich; computes nothing but widths."""

import json
import math
import sys
from collections.abc import Iterable, Mapping

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from loadtest.peers.launch import Row
from loadtest.peers.results import YARDSTICK, Figures, as_json, ratios, yardstick_of
from loadtest.peers.run import Measured

_PIPE_WIDTH = 120  # a file or a pipe has no edge to wrap at
_BAR_WIDTH = 56
_CPU = {
    "0.5 KB request": "cpu_us_500b",
    "8 KB": "cpu_us_8k",
    "64 KB": "cpu_us_64k",
    "event": "cpu_us_event",
    "event in step": "cpu_us_event_in_step",
}
_FOREIGN_WARNING = 0.1


def print_table(measured: Measured, console: Console | None = None) -> None:
    """CPU time, then rates and times, then what some rows have to say, then bars."""
    console = console or Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    table = measured.table()
    console.print(_cpu_table(table))
    ours = next((row for row in table if row.is_ours), None)
    if ours is not None and any(row.flags for row in table):
        console.print(_feature_table(table, ours))
    console.print(_rate_table(table))
    for line in _remarks(measured, table):
        console.print(escape(line), highlight=False)
    for title, name in _CPU.items():
        lines = bars({row.name: getattr(figures, name) for row, figures in table.items()})
        if len(lines) > 1:  # one alone compares nothing
            console.print(f"\n[bold]CPU time: {title}[/bold], µs, logarithmic", *map(escape, lines), sep="\n")


def print_json(measured: Measured) -> None:
    """An object keyed by row on standard output; the remarks on standard error."""
    table = measured.table()
    for line in _remarks(measured, table):
        print(line, file=sys.stderr)
    print(json.dumps(as_json(table), indent=2))


def exit_code(measured: Measured) -> int:
    """0; 1 when our own router failed or made errors, or nothing was measured; 130 when interrupted."""
    table = measured.table()
    if measured.is_interrupted:
        return 130
    ours_failed = any(row.is_ours and (figures.failure or figures.num_errors) for row, figures in table.items())
    return int(ours_failed or not any(figures.num_rounds for figures in table.values()))


def bars(values: Mapping[str, float | None]) -> list[str]:
    """A line each, the cheapest first, on a common logarithmic scale from half of the least; without the unmeasured."""
    known = sorted((value, name) for name, value in values.items() if value is not None and value > 0)
    if not known:
        return []
    start, end = known[0][0] / 2, known[-1][0]
    width = max(len(name) for _, name in known)
    per_unit = _BAR_WIDTH / math.log(end / start)
    return [f"{name:>{width}} {'█' * round(math.log(value / start) * per_unit)} {value:,.1f}" for value, name in known]


def _cpu_table(figures_by_row: Mapping[Row, Figures]) -> Table:
    table = _new_table("CPU time in µs (times nginx's)", ("router", "runs with"), _CPU)
    yardstick = yardstick_of(figures_by_row)
    for row, figures in figures_by_row.items():
        by_name = ratios(figures, yardstick) if row.name != YARDSTICK else {}
        cells = (_cell(getattr(figures, name), by_name.get(name)) for name in _CPU.values())
        table.add_row(escape(row.name), row.about, *cells, style=_style(row, figures))
    return table


def _rate_table(figures_by_row: Mapping[Row, Figures]) -> Table:
    """Times are medians at one request at a time, less those without a router; hits by size of body."""
    headers = ("requests/s", "added µs", "added TTFT µs", "event µs p50", "p99", "MB", "hits", "errors")
    table = _new_table("0.5 KB, rates and times", ("router",), headers)
    yardstick = yardstick_of(figures_by_row)
    for row, figures in figures_by_row.items():
        times = ratios(figures, yardstick).get("ttft_added_us") if row.name != YARDSTICK else None
        hits = "/".join(f"{share * 100:.0f}" for share in figures.hit_shares.values())
        table.add_row(
            escape(row.name),
            _number(figures.rps_500b),
            _number(figures.latency_added_us),
            _cell(figures.ttft_added_us, times),
            _number(figures.event_p50_us),
            _number(figures.event_p99_us),
            _number(figures.rss_mb),
            f"{hits} %" if hits else "-",
            f"{figures.num_errors} !" if figures.num_errors else "0" if figures.num_rounds else "-",
            style=_style(row, figures),
        )
    return table


def _new_table(title: str, names: Iterable[str], numbers: Iterable[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for header in names:
        table.add_column(header, no_wrap=True)
    for header in numbers:
        table.add_column(header, justify="right", no_wrap=True)
    return table


def _style(row: Row, figures: Figures) -> str | None:
    if figures.num_errors or not figures.num_rounds:
        return "red" if figures.num_errors else "dim"
    return "bold" if row.is_ours else None


def _cell(value: float | None, ratio: float | None) -> str:
    if value is None or ratio is None:
        return _number(value)
    return f"{_number(value)} ({ratio:,.2f}x)" if ratio < 10 else f"{_number(value)} ({ratio:,.0f}x)"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.1f}" if abs(value) < 1000 else f"{value:,.0f}"


def _feature_table(figures_by_row: Mapping[Row, Figures], ours: Row) -> Table:
    """Our router with every feature, less our router with that change."""
    table = _new_table("What a change saves, in µs of CPU time", ("change",), _CPU)
    for row, figures in figures_by_row.items():
        if row.is_ours and row != ours:
            pairs = [(getattr(figures_by_row[ours], name), getattr(figures, name)) for name in _CPU.values()]
            table.add_row(escape(row.name), *(_difference(all_on, without) for all_on, without in pairs))
    return table


def _difference(all_on: float | None, without: float | None) -> str:
    return "-" if all_on is None or without is None else f"{all_on - without:+,.1f}"


def _remarks(measured: Measured, table: Mapping[Row, Figures]) -> list[str]:
    remarks = [_about_cores(measured)]
    if measured.is_interrupted:
        remarks.append(f"Interrupted in round {len(measured.directs)}.")
    for row, figures in table.items():
        if figures.failure:
            remarks.append(f"{row.name}: {figures.failure}")
        if figures.num_errors:
            kinds = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in figures.errors.items())
            status = f" (first: {figures.bad_status})" if figures.bad_status else ""
            remarks.append(f"{row.name}: errors, so its figures are not to be compared: {kinds}{status}")
    foreign = [figures.foreign_cpu for figures in table.values() if figures.foreign_cpu is not None]
    if foreign and max(foreign) > _FOREIGN_WARNING:
        remarks.append(
            f"Other programs used {min(foreign):.2f} to {max(foreign):.2f} cores meanwhile: they take caches from the "
            "routers, so compare only within this run."
        )
    return remarks


def _about_cores(measured: Measured) -> str:
    cores = measured.cores
    where = f"Router on core {cores.router}, replicas and load on core {cores.load}"
    if cores.is_first:
        return f"{where}, all of them real time (SCHED_FIFO)."
    return f"{where}, at ordinary priority: chrt is not permitted here, so other programs could delay them."
