import random
from collections.abc import Iterator

import pytest

from router.core import Lease, Outcome, ReplicaState
from router.replicas.leases import take
from router.replicas.member import Member
from router.workers.board import Board, Counts
from router.workers.desk import EAGER_CELLS, LOOK_INTERVAL_S, Desk
from tests.router.nouns import FakeClock, make_demand, make_replica
from tests.router.replicas.fakes import make_decision, make_member


@pytest.fixture
def board() -> Iterator[Board]:
    board = Board.create(6)
    yield board
    board.close()


class Colleague:
    """A worker as far as the board goes: a desk, and members with leases."""

    def __init__(self, board: Board, number: int, num_replicas: int) -> None:
        board.raise_row(number)
        board.num_used_columns = num_replicas
        self.desk = Desk(board, number)
        self.members = [make_member(f"r{column}", state=ReplicaState.READY) for column in range(num_replicas)]
        self.leases: list[Lease] = []
        for column, member in enumerate(self.members):
            member.publish = self.desk.seat(member.replica, column)

    def take(self, column: int, tokens: int) -> None:
        member = self.members[column]
        decision = make_decision(member.replica, tokens)
        self.leases.append(take(make_demand(), decision, member, FakeClock(), lambda *_: None))


def siblings(member: Member) -> Counts:
    replica = member.replica
    return Counts(replica.sibling_in_flight, replica.sibling_prefilling, replica.sibling_prefilling_tokens)


def test_the_board_has_what_is_open_whatever_happens(board: Board) -> None:
    """Takes, starts, releases, deaths and births in random order: the sum over workers is that of the open leases, and
    each worker sees of the others what they have."""
    dice = random.Random(11)
    rows: dict[int, Colleague] = {number: Colleague(board, number, 3) for number in range(3)}
    for _ in range(4000):
        number = dice.choice(list(rows))
        worker = rows[number]
        move = dice.random()
        if move < 0.45:
            worker.take(dice.randrange(3), dice.randrange(1000))
        elif move < 0.6 and worker.leases:
            dice.choice(worker.leases).start()
        elif move < 0.98 and worker.leases:
            worker.leases.pop(dice.randrange(len(worker.leases))).release(dice.choice(list(Outcome)))
        elif move >= 0.98:
            del rows[number]
            board.bury_row(number)
            born = next(row for row in range(6) if not board.is_live(row))
            rows[born] = Colleague(board, born, 3)
        _check(board, rows, dice.choice(list(rows)))


def _check(board: Board, rows: dict[int, Colleague], reader: int) -> None:
    rows[reader].desk.look(0.0)
    for column in range(3):
        here = {number: _open(worker, column) for number, worker in rows.items()}
        assert board.totals(column) == _sum(list(here.values()))
        elsewhere = _sum([counts for number, counts in here.items() if number != reader])
        assert siblings(rows[reader].members[column]) == elsewhere


def _open(worker: Colleague, column: int) -> Counts:
    leases = [lease for lease in worker.leases if lease.replica is worker.members[column].replica]
    waiting = [lease for lease in leases if not lease.has_started]
    return Counts(len(leases), len(waiting), sum(lease.decision.uncached_tokens for lease in waiting))


def _sum(counts: list[Counts]) -> Counts:
    return Counts(
        sum(each.in_flight for each in counts),
        sum(each.prefilling for each in counts),
        sum(each.prefilling_tokens for each in counts),
    )


def test_many_cells_are_read_at_most_once_a_millisecond(board: Board) -> None:
    reader, writer = Colleague(board, 0, EAGER_CELLS), Colleague(board, 1, EAGER_CELLS)
    reader.desk.look(100.0)
    writer.take(0, 10)
    reader.desk.look(100.0 + LOOK_INTERVAL_S / 2)
    assert siblings(reader.members[0]) == Counts()
    reader.desk.look(100.0 + LOOK_INTERVAL_S)
    assert siblings(reader.members[0]) == Counts(1, 1, 10)


def test_what_siblings_have_there_makes_a_replica_wait_longer(board: Board) -> None:
    reader, writer = Colleague(board, 0, 1), Colleague(board, 1, 1)
    writer.take(0, 4000)
    reader.desk.look(0.0)
    assert reader.members[0].replica.expected_wait_s == 4000 / 2000
    writer.leases[0].start()
    reader.desk.look(0.0)
    assert reader.members[0].replica.expected_wait_s == reader.members[0].replica.step.decode_s(1, 0)


def test_a_column_is_held_until_the_last_lease_there_has_ended(board: Board) -> None:
    worker = Colleague(board, 0, 1)
    worker.take(0, 10)
    worker.desk.unseat(0)
    row = board.rows[0]
    assert row.holds(0)
    assert row.get(0) == Counts(1, 1, 10)
    worker.leases.pop().release(Outcome.OK)
    worker.desk.sweep()
    assert not row.holds(0)
    assert repr(worker.desk) == "<Desk 0 with 0 replicas, 0 leaving>"


def test_one_who_only_reads_sees_all_workers(board: Board) -> None:
    worker = Colleague(board, 0, 1)
    worker.take(0, 10)
    replica = make_replica("r0")
    feed = Desk(board, None)
    feed.seat(replica, 0)()
    feed.look(0.0)
    assert replica.sibling_in_flight == 1
    feed.unseat(0)
    assert replica.sibling_in_flight == 0


def test_open_and_waiting_requests_of_the_siblings_are_known(board: Board) -> None:
    one, other = Colleague(board, 0, 1), Colleague(board, 1, 1)
    board.rows[1].num_open, board.rows[1].num_waiting = 4, 2
    assert (one.desk.num_open_elsewhere(), one.desk.waiting_siblings()) == (4, [1])
    assert (other.desk.num_open_elsewhere(), other.desk.waiting_siblings()) == (0, [])
