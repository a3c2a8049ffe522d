import os
from collections.abc import Iterator

import pytest

from router.workers.board import Board, Counts


@pytest.fixture
def board() -> Iterator[Board]:
    board = Board.create(4)
    yield board
    board.close()


def test_what_one_process_writes_another_reads(board: Board) -> None:
    other = Board.attach(os.dup(board.descriptor))
    other.raise_row(2)
    other.rows[2].put(7, Counts(3, 2, 100))
    other.num_used_columns = 8
    assert board.rows[2].get(7) == Counts(3, 2, 100)
    assert board.totals(7) == Counts(3, 2, 100)
    assert repr(board) == "<Board 1 of 4 rows live, 8 columns used>"
    other.close()


def test_a_write_shows_in_the_version(board: Board) -> None:
    row = board.rows[0]
    before = row.version
    row.put(1, Counts(1))
    assert row.version == before + 1


def test_a_buried_row_is_empty_and_looks_changed(board: Board) -> None:
    board.raise_row(1)
    row = board.rows[1]
    row.put(0, Counts(5, 1, 10))
    row.hold(0)
    row.num_open, row.num_waiting, row.applied = 5, 6, 7
    before = row.version
    board.bury_row(1)
    assert (row.get(0), row.holds(0), row.num_open, row.num_waiting, row.applied) == (Counts(), False, 0, 0, 0)
    assert row.version == before + 1
    assert not board.is_live(1)
    assert board.totals(0) == Counts()


def test_what_is_no_board_is_refused() -> None:
    descriptor = os.memfd_create("something")
    os.write(descriptor, bytes(100))
    with pytest.raises(ValueError, match="no board of this version"):
        Board.attach(descriptor)
    os.close(descriptor)


def test_the_memory_has_no_name(board: Board) -> None:
    """It goes with the last process that holds it, however that ends."""
    assert os.fstat(board.descriptor).st_nlink == 0
