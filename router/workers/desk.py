"""A worker's desk at the board: it writes what this worker has on each replica, and reads what its siblings have.

Knows replicas and columns; knows nothing of the feed that gives the columns out. What siblings have is read at a
decision, and only when one of them has written since; where that means many words, at most once a millisecond.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from router.core import Replica
from router.workers.board import CELL_WORDS, OPEN, VERSION, WAITING, Board, Row

# So many cells are summed up in some 10 us.
EAGER_CELLS = 32
LOOK_INTERVAL_S = 0.001


@dataclass(eq=False, slots=True)
class Desk:
    """`number` is this worker's row; None for one who only reads (the feed), to whom all workers are siblings."""

    board: Board
    number: int | None
    row: Row | None = field(init=False)
    _numbers: list[int] = field(init=False)
    _words: "list[memoryview[int]]" = field(init=False)
    _seen: list[int] = field(init=False)
    _seats: dict[int, Replica] = field(default_factory=dict, init=False)
    _leaving: dict[int, Replica] = field(default_factory=dict, init=False)
    _look_at: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.row = None if self.number is None else self.board.rows[self.number]
        self._numbers = [number for number in range(self.board.num_rows) if number != self.number]
        self._words = [self.board.rows[number].words for number in self._numbers]
        self._forget()

    def seat(self, replica: Replica, column: int) -> Callable[[], None]:
        """From now on this replica's counts are shared. Returns what to call when they have changed."""
        self._seats[column] = replica
        self._forget()
        if self.row is None:
            return _write_nothing
        self._leaving.pop(column, None)
        self.row.hold(column)
        write = self.row.write

        def publish() -> None:
            write(column, replica.in_flight, replica.prefilling, replica.prefilling_tokens)

        publish()
        return publish

    def unseat(self, column: int) -> None:
        """The replica is gone. Its column is held until this worker's last lease there has ended."""
        replica = self._seats.pop(column, None)
        if replica is not None:
            replica.sibling_in_flight = replica.sibling_prefilling = replica.sibling_prefilling_tokens = 0
            if self.row is not None:
                self._leaving[column] = replica
        self.sweep()

    def sweep(self) -> None:
        """Let go of the columns of replicas that are gone and have nothing of ours any more."""
        for column, replica in list(self._leaving.items()):
            if replica.in_flight == 0 and self.row is not None:
                del self._leaving[column]
                self.row.let_go(column)

    def look(self, now: float) -> None:
        """Bring `sibling_*` of the seated replicas up to date."""
        if now < self._look_at:
            return
        versions = [words[VERSION] for words in self._words]
        if versions != self._seen:
            self._seen = versions
            # A row without a version was never written, and one that was buried holds zeros.
            self._sum_up([number for number, version in zip(self._numbers, versions, strict=True) if version])
            if len(self._seats) * len(self._numbers) > EAGER_CELLS:
                self._look_at = now + LOOK_INTERVAL_S

    def num_open_elsewhere(self) -> int:
        """Requests open in the siblings."""
        return sum([words[OPEN] for words in self._words])

    def waiting_siblings(self) -> list[int]:
        """Row numbers of those who have somebody waiting for a place. Called for each request, and mostly none has."""
        if not sum([words[WAITING] for words in self._words]):
            return []
        return [number for number, words in zip(self._numbers, self._words, strict=True) if words[WAITING]]

    def _forget(self) -> None:
        self._seen = []
        self._look_at = 0.0

    def _sum_up(self, numbers: list[int]) -> None:
        size = self.board.num_used_columns
        cells = [self.board.rows[number].cells(size) for number in numbers] or [[0] * (size * CELL_WORDS)]
        sums = cells[0] if len(cells) == 1 else list(map(sum, zip(*cells, strict=True)))
        for column, replica in self._seats.items():
            at = column * CELL_WORDS
            replica.sibling_in_flight = sums[at]
            replica.sibling_prefilling = sums[at + 1]
            replica.sibling_prefilling_tokens = sums[at + 2]

    def __repr__(self) -> str:
        return f"<Desk {self.number} with {len(self._seats)} replicas, {len(self._leaving)} leaving>"


def _write_nothing() -> None:
    """Of a desk without a row."""
