"""Traces of real traffic: files in, rows out. Knows the columns of each format and the jitter rule; knows nothing of
texts, HTTP or when a row is sent.

A format is one line of the table below; a file is recognised by its columns.
"""

import csv
import difflib
import gzip
import io
import json
import math
import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from loadtest.errors import UsageError

_SHIPPED = Path(__file__).with_name("traces")
_SUFFIXES = (".gz", ".jsonl", ".csv", ".dev")
# Stamps that lie at least this far apart, with several rows on each, are ticks of a clock and not bursts.
_SHORTEST_TICK_S = 1.0
_ROWS_PER_TICK = 2


@dataclass(frozen=True, slots=True)
class Row:
    """One request of a trace: seconds since its start, lengths in tokens, ids of its prefix blocks, its tenant."""

    at_s: float
    num_input_tokens: int
    num_output_tokens: int
    block_ids: tuple[int, ...] = ()
    tenant: str | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """Rows by arrival; `block_size` is the number of tokens that one block id stands for, None without blocks."""

    name: str
    rows: tuple[Row, ...]
    block_size: int | None


@dataclass(frozen=True, slots=True)
class _Format:
    """Which columns hold what; the block size is one number, or in a column that is the same in all rows. `marks` are
    further columns that tell the format from a similar one."""

    at: str
    input: str
    output: str
    seconds_per_unit: float = 1.0
    blocks: str | None = None
    block_size: int | None = None
    block_size_column: str | None = None
    tenant: str | None = None
    tenant_prefix: str = ""
    marks: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        optional = (self.blocks, self.block_size_column, self.tenant)
        return (self.at, self.input, self.output, *(name for name in optional if name), *self.marks)


_LENGTHS = ("input_length", "output_length")
_FORMATS = (
    # Qwen-Bailian names its columns as Mooncake does, but counts seconds and blocks of 16 tokens.
    _Format("timestamp", *_LENGTHS, blocks="hash_ids", block_size=16, marks=("chat_id", "parent_chat_id")),
    # Mooncake, and traces derived from it.
    _Format("timestamp", *_LENGTHS, seconds_per_unit=1e-3, blocks="hash_ids", block_size=512),
    # What `pointsman serve --record` writes.
    _Format("at_s", "prompt_tokens", "output_tokens", blocks="block_hashes", block_size_column="block_size"),
    # Azure LLM inference 2023.
    _Format("t_s", "context_tokens", "generated_tokens"),
    # Chatbot Arena, one adapter per model.
    _Format("t_s", "prompt_tokens", "output_tokens", tenant="adapter_id", tenant_prefix="adapter-"),
    # ServeGen, by tenant.
    _Format("t_s", "input_tokens", "output_tokens", tenant="tenant_id", tenant_prefix="tenant-"),
)


def shipped_traces() -> dict[str, Path]:
    """The traces that come with the package, by name."""
    return {_plain_name(path): path for path in sorted(_SHIPPED.glob("*.gz"))}


def load_trace(name_or_path: str, seed: int) -> Trace:
    """Load a shipped trace by name, or a .jsonl or .csv file, either gzipped or not.

    Ticked stamps are spread by seeded jitter. Raises UsageError naming the file and line of what is wrong.
    """
    path = find_trace(name_or_path)
    rows: list[Row] = []
    chosen: _Format | None = None
    block_size: int | None = None
    try:
        for line, cells in _read(path):
            chosen = chosen or _recognise(path, line, cells)
            block_size = _block_size(path, line, cells, chosen, block_size)
            rows.append(_row(path, line, cells, chosen))
    except (OSError, EOFError, zlib.error, csv.Error, UnicodeDecodeError) as error:
        raise UsageError(f"--trace: cannot read {path}: {error}") from None
    if chosen is None:
        raise UsageError(f"--trace: {path} holds no rows")
    return Trace(_plain_name(path), tuple(_spread(rows, seed)), block_size)


def _plain_name(path: Path) -> str:
    name = path.name
    while Path(name).suffix in _SUFFIXES:
        name = Path(name).stem
    return name


def find_trace(name_or_path: str) -> Path:
    """The file of a shipped trace, or of a path. Raises UsageError where there is none."""
    shipped = shipped_traces()
    if name_or_path in shipped:
        return shipped[name_or_path]
    path = Path(name_or_path)
    if path.is_file():
        return path
    nearest = difflib.get_close_matches(name_or_path, shipped, n=1)
    hint = f"did you mean {nearest[0]}?" if nearest else f"shipped are {', '.join(shipped)}"
    raise UsageError(f"--trace: {name_or_path!r} is neither a file nor a shipped trace; {hint}")


def _read(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line numbers and their cells."""
    open_bytes = gzip.open if path.suffix == ".gz" else open
    with open_bytes(path, "rb") as raw, io.TextIOWrapper(raw, encoding="utf-8", newline="") as text:
        if ".csv" in path.suffixes:
            table = csv.DictReader(text)
            for cells in table:
                if None in cells:
                    raise _bad(path, table.line_num, "more cells than columns")
                yield table.line_num, cells
            return
        for number, line in enumerate(text, 1):
            if line.strip():
                yield number, _json_line(path, number, line)


def _json_line(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        cells = json.loads(line)
    except ValueError as error:
        raise _bad(path, number, f"not JSON: {error}") from None
    if not isinstance(cells, dict):
        raise _bad(path, number, "not a JSON object")
    return cells


def _recognise(path: Path, line: int, cells: dict[str, Any]) -> _Format:
    for known in _FORMATS:
        if cells.keys() >= set(known.columns):
            return known
    raise _bad(path, line, f"columns {', '.join(map(str, cells))} are of no known trace format")


def _block_size(path: Path, line: int, cells: dict[str, Any], known: _Format, before: int | None) -> int | None:
    """That of the format, or of this row."""
    if known.block_size_column is None:
        return known.block_size
    size = cells.get(known.block_size_column)
    if type(size) is not int or size < 1:
        raise _bad(path, line, f"{known.block_size_column} is not a whole number from 1: {size!r}")
    if before not in (None, size):
        raise _bad(path, line, f"{known.block_size_column} is {size} here and {before} above: one size to a trace")
    return size


def _row(path: Path, line: int, cells: dict[str, Any], known: _Format) -> Row:
    try:
        return Row(
            at_s=_number(cells, known.at) * known.seconds_per_unit,
            num_input_tokens=int(_number(cells, known.input)),
            num_output_tokens=int(_number(cells, known.output)),
            block_ids=_block_ids(cells, known),
            tenant=f"{known.tenant_prefix}{_cell(cells, known.tenant)}" if known.tenant else None,
        )
    except ValueError as error:
        raise _bad(path, line, str(error)) from None


def _cell(cells: dict[str, Any], column: str) -> Any:
    value = cells.get(column)
    if value is None or value == "":
        raise ValueError(f"{column} is missing")
    return value


def _number(cells: dict[str, Any], column: str) -> float:
    value = _cell(cells, column)
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{column} is not a number: {value!r}") from None
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{column} must be zero or more: {value!r}")
    return number


def _block_ids(cells: dict[str, Any], known: _Format) -> tuple[int, ...]:
    if known.blocks is None:
        return ()
    ids = _cell(cells, known.blocks)
    if not isinstance(ids, list) or not all(type(item) is int for item in ids):
        raise ValueError(f"{known.blocks} is not a list of whole numbers")
    return tuple(ids)


def _spread(rows: list[Row], seed: int) -> list[Row]:
    """Sort by arrival, from zero on; stamps that were rounded down to ticks get seeded jitter within their tick."""
    stamps = sorted({row.at_s for row in rows})
    tick_s = _tick_s(stamps, len(rows))
    jitter = random.Random(f"{seed}/jitter")
    moved = [replace(row, at_s=row.at_s - stamps[0] + jitter.uniform(0, tick_s)) for row in rows]
    return sorted(moved, key=lambda row: row.at_s)


def _tick_s(stamps: list[float], num_rows: int) -> float:
    """The length of the clock's ticks; 0 where the stamps are true times."""
    gaps = [later - earlier for earlier, later in pairwise(stamps)]
    if not gaps or min(gaps) < _SHORTEST_TICK_S or num_rows < _ROWS_PER_TICK * len(stamps):
        return 0.0
    return median(gaps)


def _bad(path: Path, line: int, what: str) -> UsageError:
    return UsageError(f"--trace: {path} line {line}: {what}")
