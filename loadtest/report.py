"""Shows a summary: the table and the JSON. Knows rich and file formats; computes nothing."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from loadtest.cancel import CancelSummary
from loadtest.settings import RunSettings, Server
from loadtest.summary import Spread, Summary, Tokens

# Above this, what the table says of single tokens may be this process's doing and not the server's.
_LAG_WARNING_S = 0.02


def print_table(summary: Summary, console: Console | None = None) -> None:
    """Print the counts, then the latencies."""
    console = console or Console()
    console.print(_count_table(summary))
    console.print(_latency_table(summary))
    if summary.lag_s > _LAG_WARNING_S:
        console.print(
            f"Warning: this client was up to {_ms(summary.lag_s)} ms late, so single times may be that much too long. "
            "Use a lower rate, or a machine with a core to spare.",
            style="yellow",
        )
    if summary.is_interrupted:
        console.print(f"Interrupted; {summary.num_unfinished} requests in flight are not counted.", style="yellow")


def print_cancels(summary: CancelSummary, console: Console | None = None) -> None:
    """Print the times from the close of a connection, one row a phase and gauge."""
    console = console or Console()
    table = Table(title=f"{escape(summary.model)}: after the client has gone", title_justify="left")
    table.add_column("ms until")
    for header in ("cancels", "p50", "p90", "p99", "max"):
        table.add_column(header, justify="right")
    for phase in summary.phases:
        table.add_row(f"[bold]closed {phase.phase}")
        for name, values in (("no request runs", phase.idle_s), ("KV blocks are back", phase.kv_back_s)):
            table.add_row(f"  {name}", str(values.count if values else 0), *_spread_cells(values)[1:])
    console.print(table)
    if summary.poll_s is not None:
        console.print(f"Resolution: one look at /metrics every {_ms(summary.poll_s.p50)} ms (p50).")


def write_json(path: Path, results: Any, settings: Server) -> None:
    """Write a results dataclass and the settings; the key is left out."""
    content = {"settings": asdict(settings) | {"api_key": None}, "results": asdict(results)}
    path.write_text(json.dumps(content, indent=2, default=str) + "\n", encoding="utf-8")


def exit_code(summary: Summary, settings: RunSettings) -> int:
    """0; 1 when more requests failed than allowed or none ended; 130 when interrupted."""
    if summary.is_interrupted:
        return 130
    return int(summary.num_requests == 0 or summary.error_share > settings.max_error_share)


def _count_table(summary: Summary) -> Table:
    table = Table(title=f"{escape(summary.model)}, {summary.duration_s:.1f} s", show_header=False, title_justify="left")
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, value in _count_rows(summary):
        table.add_row(name, escape(value))
    return table


def _count_rows(summary: Summary) -> Iterator[tuple[str, str]]:
    yield "requests", f"{summary.num_succeeded} succeeded, {summary.num_failed} failed"
    for failure in summary.failures:
        yield f"  {failure.label}", f"{failure.count}, first: {failure.example[:160]}"
    yield "requests/s", f"{summary.requests_per_s:.2f}"
    yield "input tokens/s", _rate(summary.input_tokens)
    yield "output tokens/s", _rate(summary.output_tokens)
    yield "cached tokens", "not reported" if summary.cached_share is None else _percent(summary.cached_share)
    if summary.goodput_per_s is not None and summary.slo_share is not None:
        yield "goodput", f"{summary.goodput_per_s:.2f} requests/s, {_percent(summary.slo_share)} within the SLO"
    if summary.requests_by_replica:
        yield "replicas", ", ".join(f"{name}: {n}" for name, n in summary.requests_by_replica.items())
    yield "client lag", f"{_ms(summary.lag_s)} ms at most"


def _latency_table(summary: Summary) -> Table:
    table = Table("ms", *("mean", "p50", "p90", "p99", "max"), title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    rows = {
        "TTFT": summary.ttft_s,
        "ITL": summary.itl_s,
        "TPOT": summary.tpot_s,
        "end to end": summary.e2e_s,
    }
    for name, values in rows.items():
        table.add_row(name, *_spread_cells(values))
    return table


def _spread_cells(values: Spread | None) -> tuple[str, ...]:
    if values is None:
        return ("-",) * 5
    return tuple(_ms(value) for value in (values.mean, values.p50, values.p90, values.p99, values.max))


def _rate(tokens: Tokens) -> str:
    return f"{tokens.per_s:,.1f} ({tokens.total:,} by {tokens.source})"


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.1f}" if seconds < 10 else f"{seconds * 1000:,.0f}"
