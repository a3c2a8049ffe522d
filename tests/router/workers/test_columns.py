from collections.abc import Iterator

import pytest

from router.workers.board import NUM_COLUMNS, Board
from router.workers.columns import Columns


@pytest.fixture
def board() -> Iterator[Board]:
    board = Board.create(2)
    yield board
    board.close()


def test_a_replica_keeps_its_column(board: Board) -> None:
    columns = Columns(board, 0)
    assert [columns.assign(id) for id in ("a", "b", "a")] == [0, 1, 0]
    assert repr(columns) == "<Columns 2 given, 0 to be let go>"


def test_a_feed_that_was_restarted_gives_each_the_column_it_had(board: Board) -> None:
    board.raise_row(0)
    first = Columns(board, 0)
    had = {id: first.assign(id) for id in "abc"}
    second = Columns(board, 10)
    second.retire_all_but(["a", "c", "d"], 11)
    assert {id: second.assign(id) for id in "ac"} == {id: had[id] for id in "ac"}
    assert second.assign("d") not in had.values(), "nobody knows who still writes in b's"


def test_a_column_is_given_on_only_when_every_live_worker_has_let_go_of_it(board: Board) -> None:
    columns = Columns(board, 0)
    board.raise_row(0)
    board.raise_row(1)
    freed = columns.assign("a")
    assert freed is not None
    board.rows[0].hold(freed)
    columns.retire("a", 5)
    assert columns.assign("b") != freed
    board.rows[0].applied = board.rows[1].applied = 5
    assert columns.assign("c") != freed, "one has a lease there"
    board.rows[0].let_go(freed)
    board.rows[1].applied = 4
    assert columns.assign("d") != freed, "one has not heard yet"
    board.rows[1].applied = 5
    assert columns.assign("e") == freed


def test_a_dead_worker_holds_nothing(board: Board) -> None:
    columns = Columns(board, 0)
    board.raise_row(0)
    freed = columns.assign("a")
    assert freed is not None
    board.rows[0].hold(freed)
    columns.retire("a", 5)
    board.bury_row(0)
    assert columns.assign("b") == freed


def test_a_full_board_gives_none(board: Board) -> None:
    columns = Columns(board, 0)
    board.num_used_columns = NUM_COLUMNS
    assert columns.assign("a") is None
