"""The comparison as a table, or as JSON. Knows rich; computes nothing."""

import sys
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from loadtest.engine.comparison import Row, over_our_bfloat16, ratios, ratios_in
from loadtest.engine.job import Job


def print_json(rows: list[Row], job: Job) -> None:
    content: dict[str, Any] = {
        "threads": job.threads,
        "clock": job.clock,
        "rows": [
            {"engine": row.contender.label, "equal_answers": row.num_equal, "figures": row.figures} for row in rows
        ],
        "ratios": ratios(rows),
        "ratios_in_bfloat16": ratios_in(rows, "bfloat16"),
        "over_our_bfloat16_at_batch_1": over_our_bfloat16(rows),
    }
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(content)) + b"\n")


def print_table(rows: list[Row], job: Job) -> None:
    console = Console()
    unit = "a second of CPU time" if job.clock == "cpu" else "a second"
    table = Table(title=f"Tokens {unit}, {job.threads} threads, best of {job.num_rounds}")
    table.add_column("engine")
    for name in (*rows[0].speeds, "right answers", "own MiB"):
        table.add_column(name, justify="right")
    for row in rows:
        memory = row.figures.anonymous_mib
        speeds = [f"{speed:.1f}" for speed in row.speeds.values()]
        right = f"{row.num_equal}/{len(row.figures.answers)}"
        table.add_row(row.contender.label, *speeds, right, "" if memory is None else f"{memory:.0f}")
    console.print(table)
    for ratio in ratios(rows):
        console.print(f"{ratio.what}: {ratio.ratio:.2f} times {ratio.peer}, each in its fastest format that is right")
    for ratio in ratios_in(rows, "bfloat16"):
        console.print(f"beside, {ratio.what}: {ratio.ratio:.2f} times {ratio.peer}, both in bfloat16")
    for label, gain in over_our_bfloat16(rows).items():
        console.print(f"batch 1: {label} is {gain:.2f} times our bfloat16")
    for row in rows:
        if row.figures.turns_ms:
            turns = ", ".join(f"{ms:.0f} ms for {size}" for size, ms in row.figures.turns_ms.items())
            console.print(f"{row.contender.label}: a cached turn of {len(job.turn)} tokens takes {turns} new ones")
