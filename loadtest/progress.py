"""Shows how far a run is. Knows terminals; reads four numbers and knows nothing else of the run.

On a terminal it is a bar, drawn from the event loop itself: a thread of its own would take the interpreter away from
the measurement at moments of its choosing. Elsewhere it is a line now and then. Both go to standard error.
"""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

_BAR_S = 0.25
_LINE_S = 5.0


@dataclass(frozen=True, slots=True)
class Counts:
    """The state of a run at one moment."""

    num_done: int
    num_failed: int
    num_in_flight: int
    elapsed_s: float

    def __str__(self) -> str:
        return f"{self.num_done} done, {self.num_failed} failed, {self.num_in_flight} in flight"


async def show_progress(read: Callable[[], Counts], num_planned: int | None, duration_s: float | None) -> None:
    """Show the counts until cancelled. The bar follows the requests, or the time where no number is planned."""
    if sys.stderr.isatty():
        await _show_bar(read, num_planned, duration_s)
    else:
        await _show_lines(read, num_planned)


async def _show_bar(read: Callable[[], Counts], num_planned: int | None, duration_s: float | None) -> None:
    columns = (
        BarColumn(),
        TextColumn("{task.percentage:3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False) as bar:
        task = bar.add_task("", total=num_planned or duration_s)
        try:
            while True:
                _draw(bar, task, read(), num_planned)
                await asyncio.sleep(_BAR_S)
        finally:
            _draw(bar, task, read(), num_planned)


def _draw(bar: Progress, task: TaskID, counts: Counts, num_planned: int | None) -> None:
    completed = counts.num_done if num_planned else counts.elapsed_s
    bar.update(task, completed=completed, description=str(counts))
    bar.refresh()


async def _show_lines(read: Callable[[], Counts], num_planned: int | None) -> None:
    planned = f" of {num_planned} planned" if num_planned else ""
    while True:
        await asyncio.sleep(_LINE_S)
        counts = read()
        print(f"{counts.elapsed_s:.0f} s: {counts}{planned}", file=sys.stderr, flush=True)
