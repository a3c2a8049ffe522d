"""What a start tells of itself: how long each phase took, and a bar for whoever watches.

Knows clocks and terminals. Must not know models.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import TextIO

_BAR_WIDTH = 30


@dataclass(eq=False, slots=True)
class LoadPhases:
    """Seconds by phase, in the order in which they came."""

    took_s: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        started = perf_counter()
        yield
        self.took_s[phase] = perf_counter() - started


def progress_bar(stream: TextIO = sys.stderr) -> Callable[[int, int], None] | None:
    """Draws over one line of a terminal and wipes it in the end; None where nobody watches."""
    if not stream.isatty():
        return None

    def draw(done: int, total: int) -> None:
        filled = _BAR_WIDTH * done // total
        line = f"\rloading layers [{'#' * filled}{' ' * (_BAR_WIDTH - filled)}] {done}/{total}"
        stream.write(line if done < total else "\r" + " " * len(line) + "\r")
        stream.flush()

    return draw
