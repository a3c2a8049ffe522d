"""The board: one host, several workers, one table in shared memory of what each of them has on each replica.

Knows words of 64 bits, rows and columns; knows nothing of sockets, processes or what a count is good for. A row is one
worker's, a column one replica's, and every word has one writer: a worker its row (the supervisor, once that worker is
dead), the feed the directory of columns, the supervisor which rows are live. So nothing is locked: a word is written
whole, and a reader that comes between two words sees a count that was true a moment ago.

The memory is a memfd, passed on by its descriptor: it has no name, and is gone with the last process that holds it.
"""

import contextlib
import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

NUM_COLUMNS = 4096
WORD_BYTES = 8
# The header: how many rows, and how many columns were ever used (the feed's).
_ROWS, _USED, _HEADER_WORDS = 0, 1, 8
# A row's head: grows with each change; what the worker has applied of the feed's; its open and waiting requests.
VERSION, _APPLIED, OPEN, WAITING, _HEAD_WORDS = 0, 1, 2, 3, 8
# A cell: three counts, and 1 while the worker may still write them.
_IN_FLIGHT, _PREFILLING, _TOKENS, _HELD, CELL_WORDS = 0, 1, 2, 3, 4
_ROW_WORDS = _HEAD_WORDS + NUM_COLUMNS * CELL_WORDS


@dataclass(frozen=True, slots=True)
class Counts:
    """Open leases, those without a first token, and the uncached prompt tokens of those."""

    in_flight: int = 0
    prefilling: int = 0
    prefilling_tokens: int = 0


@dataclass(eq=False, slots=True)
class Row:
    """One worker's words. Only this worker writes through it, or whoever buries it."""

    words: "memoryview[int]"

    @property
    def version(self) -> int:
        return self.words[VERSION]

    @property
    def applied(self) -> int:
        """The sequence number of the last frame of the feed's that this worker has taken in."""
        return self.words[_APPLIED]

    @applied.setter
    def applied(self, sequence: int) -> None:
        self.words[_APPLIED] = sequence

    @property
    def num_open(self) -> int:
        return self.words[OPEN]

    @num_open.setter
    def num_open(self, count: int) -> None:
        self.words[OPEN] = count

    @property
    def num_waiting(self) -> int:
        return self.words[WAITING]

    @num_waiting.setter
    def num_waiting(self, count: int) -> None:
        self.words[WAITING] = count

    def hold(self, column: int) -> None:
        self.words[_cell(column) + _HELD] = 1

    def let_go(self, column: int) -> None:
        """Zero the cell, and write it no more."""
        self.put(column, Counts())
        self.words[_cell(column) + _HELD] = 0

    def holds(self, column: int) -> bool:
        return self.words[_cell(column) + _HELD] != 0

    def put(self, column: int, counts: Counts) -> None:
        self.write(column, counts.in_flight, counts.prefilling, counts.prefilling_tokens)

    def write(self, column: int, in_flight: int, prefilling: int, prefilling_tokens: int) -> None:
        """Called three times a request. The version last: who has seen it sees what came before."""
        words, at = self.words, _HEAD_WORDS + column * CELL_WORDS
        words[at] = in_flight
        words[at + _PREFILLING] = prefilling
        words[at + _TOKENS] = prefilling_tokens
        words[VERSION] += 1

    def get(self, column: int) -> Counts:
        return Counts(*self.words[_cell(column) : _cell(column) + _HELD])

    def cells(self, num_columns: int) -> list[int]:
        """The words of the first columns, `CELL_WORDS` each, in one copy."""
        return self.words[_HEAD_WORDS : _cell(num_columns)].tolist()

    def bury(self) -> None:
        """Its worker is dead, and its leases with it."""
        version = self.words[VERSION]
        for at in range(_ROW_WORDS):
            if self.words[at]:
                self.words[at] = 0
        self.words[VERSION] = version + 1


def _cell(column: int) -> int:
    return _HEAD_WORDS + column * CELL_WORDS


@dataclass(eq=False, slots=True)
class Board:
    """The table. `descriptor` is to be passed to the processes that share it."""

    descriptor: int
    num_rows: int
    rows: Sequence[Row]
    _memory: mmap.mmap
    _header: "memoryview[int]"
    _live: "memoryview[int]"
    _directory: "memoryview[int]"
    _views: "list[memoryview[int]]" = field(default_factory=list)

    @classmethod
    def create(cls, num_rows: int) -> Self:
        descriptor = os.memfd_create("pointsman-board")
        os.ftruncate(descriptor, _size(num_rows))
        board = cls._map(descriptor, num_rows)
        board._header[_ROWS] = num_rows
        return board

    @classmethod
    def attach(cls, descriptor: int) -> Self:
        """The table that another process created. Raises ValueError for anything else."""
        head = os.pread(descriptor, WORD_BYTES, 0)
        num_rows = int.from_bytes(head, "little")
        if os.fstat(descriptor).st_size != _size(num_rows):
            raise ValueError("this descriptor is no board of this version")
        return cls._map(descriptor, num_rows)

    def is_live(self, row: int) -> bool:
        return self._live[row] != 0

    def raise_row(self, row: int) -> None:
        """The supervisor gives this row to a worker that it is about to start."""
        self._live[row] = 1

    def bury_row(self, row: int) -> None:
        """The supervisor takes it back: the worker is dead."""
        self._live[row] = 0
        self.rows[row].bury()

    def live_rows(self) -> Iterator[Row]:
        return (row for number, row in enumerate(self.rows) if self.is_live(number))

    @property
    def num_used_columns(self) -> int:
        """Columns that were ever given to a replica. The feed's to write, as is the directory."""
        return self._header[_USED]

    @num_used_columns.setter
    def num_used_columns(self, count: int) -> None:
        self._header[_USED] = count

    def key_of(self, column: int) -> bytes:
        """The directory's 16 bytes for a column, zeros where it belongs to nobody."""
        return self._directory[2 * column : 2 * column + 2].tobytes()

    def set_key(self, column: int, key: bytes) -> None:
        self._directory[2 * column : 2 * column + 2] = memoryview(key).cast("q")

    def totals(self, column: int) -> Counts:
        """Over all workers."""
        found = [row.get(column) for row in self.live_rows()]
        return Counts(
            sum(counts.in_flight for counts in found),
            sum(counts.prefilling for counts in found),
            sum(counts.prefilling_tokens for counts in found),
        )

    def close(self) -> None:
        """Unmap it here; others keep it."""
        for view in reversed(self._views):
            view.release()
        self._memory.close()
        with contextlib.suppress(OSError):
            os.close(self.descriptor)

    @classmethod
    def _map(cls, descriptor: int, num_rows: int) -> Self:
        memory = mmap.mmap(descriptor, _size(num_rows))
        views: list[memoryview[int]] = [memoryview(memory)]
        views.append(views[0].cast("q"))

        def part(at: int, size: int) -> "memoryview[int]":
            views.append(views[1][at : at + size])
            return views[-1]

        live_at = _HEADER_WORDS
        directory_at = live_at + num_rows
        rows_at = directory_at + 2 * NUM_COLUMNS
        rows = [Row(part(rows_at + row * _ROW_WORDS, _ROW_WORDS)) for row in range(num_rows)]
        header, live = part(0, _HEADER_WORDS), part(live_at, num_rows)
        return cls(descriptor, num_rows, rows, memory, header, live, part(directory_at, 2 * NUM_COLUMNS), views)

    def __repr__(self) -> str:
        return f"<Board {sum(self._live)} of {self.num_rows} rows live, {self.num_used_columns} columns used>"


def _size(num_rows: int) -> int:
    return (_HEADER_WORDS + num_rows + 2 * NUM_COLUMNS + num_rows * _ROW_WORDS) * WORD_BYTES
