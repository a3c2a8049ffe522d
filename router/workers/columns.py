"""Which replica has which column of the board: decided by the feed alone. Knows ids and columns; no counts, no sockets.

The directory lies in the board, so that a feed that was restarted gives each replica the column that the workers know
it by. A column goes to another replica only when every live worker has heard that the first is gone (`applied`) and has
ended its last lease there (`holds`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from router.workers.board import NUM_COLUMNS, Board

_NOBODY = bytes(16)


@dataclass(eq=False, slots=True)
class Columns:
    """`first_sequence` is below all sequence numbers that this feed will send."""

    board: Board
    first_sequence: int
    _by_key: dict[bytes, int] = field(default_factory=dict, init=False)
    _retiring: dict[int, int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for column in range(self.board.num_used_columns):
            key = self.board.key_of(column)
            if key == _NOBODY:
                self._retiring[column] = self.first_sequence
            else:
                self._by_key[key] = column

    def assign(self, replica_id: str) -> int | None:
        """Its column, the same each time; None where the board is full: then each worker knows its own counts only."""
        key = _key(replica_id)
        column = self._by_key.get(key)
        if column is None and (column := self._free_column()) is not None:
            self.board.set_key(column, key)
            self._by_key[key] = column
        return column

    def retire(self, replica_id: str, sequence: int) -> None:
        """It is gone, and the frame of this sequence number says so."""
        self._retire(_key(replica_id), sequence)

    def retire_all_but(self, replica_ids: Sequence[str], sequence: int) -> None:
        """After a restart: those who went meanwhile."""
        for key in self._by_key.keys() - {_key(id) for id in replica_ids}:
            self._retire(key, sequence)

    def _retire(self, key: bytes, sequence: int) -> None:
        column = self._by_key.pop(key, None)
        if column is not None:
            self.board.set_key(column, _NOBODY)
            self._retiring[column] = sequence

    def _free_column(self) -> int | None:
        for column, sequence in self._retiring.items():
            if all(row.applied >= sequence and not row.holds(column) for row in self.board.live_rows()):
                del self._retiring[column]
                return column
        column = self.board.num_used_columns
        if column == NUM_COLUMNS:
            return None
        self.board.num_used_columns = column + 1
        return column

    def __repr__(self) -> str:
        return f"<Columns {len(self._by_key)} given, {len(self._retiring)} to be let go>"


def _key(replica_id: str) -> bytes:
    return blake2b(replica_id.encode(), digest_size=16).digest()
