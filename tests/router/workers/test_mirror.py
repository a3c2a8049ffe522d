"""Snapshot and deltas, applied in order, come to what the feed sees; and what siblings sent is taken in by slices."""

import asyncio
import random
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from router.core import Load, Outcome, Replica, ReplicaState
from router.prefix.caches import Caches
from router.prefix.changes import Emptied, held
from router.prefix.follower import FeedState, FeedStatus
from router.prefix.index import BlockIndex
from router.prefix.knowledge import Knowing
from router.replicas.registry import Registry
from router.replicas.sighting import Sighting
from router.spec import ReplicaSpec
from router.workers import intake
from router.workers.board import Board
from router.workers.desk import Desk
from router.workers.frames import Delta, Dispatches, Document, Fed, Snapshot, Told
from router.workers.mirror import Mirror
from tests.fakes import turns
from tests.router.nouns import FakeClock, make_demand
from tests.router.replicas.fakes import Fleet, make_decision, make_identity

NEVER = float("-inf")


class SlowIndex(BlockIndex):
    """Writes down what it is told, which takes time."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(2**20)
        self.log: list[tuple[str, tuple[int, ...]]] = []
        self.clock = clock

    def insert(self, replica_id: str, block_hashes: Sequence[int]) -> None:
        self.clock.now += 0.0004
        self.log.append((replica_id, tuple(block_hashes)))

    def store(self, replica_id: str, parent: int | None, block_hashes: Sequence[int], *, is_host: bool = False) -> None:
        self.insert(replica_id, block_hashes)

    def remove(self, replica_id: str) -> None:
        self.log.append((replica_id, ()))


class Rig:
    def __init__(self, board: Board) -> None:
        board.raise_row(0)
        board.num_used_columns = 64
        self.board = board
        self.lost: list[str] = []
        self.clock = FakeClock()
        self.index = SlowIndex(self.clock)
        self.caches = Caches(self.index, lambda _: True, listens=False)
        self.registry = Registry(
            Fleet(), on_change=lambda: None, on_lost=self.lost.append, on_identified=lambda *_: None
        )
        self.mirror = Mirror(self.registry, Desk(board, 0), self.caches, self.clock)

    def replica(self, id: str) -> Replica:
        return next(replica for replica in self.registry.replicas() if replica.id == id)

    def seen(self) -> dict[str, tuple[object, ...]]:
        """What the registry has now, in the words of sightings."""
        return {
            member.replica.id: (
                member.replica.spec,
                member.replica.state,
                member.identity,
                member.replica.load,
                member.replica.foreign_requests,
            )
            for member in self.registry.members()
        }


@pytest.fixture
def rig() -> Iterator[Rig]:
    board = Board.create(2)
    yield Rig(board)
    board.close()


def sighting(id: str = "a", column: int | None = 0, **fields: object) -> Sighting:
    values: dict[str, object] = {
        "state": ReplicaState.READY,
        "is_settled": True,
        "lost_at": 0.0,
        "cooling_until": NEVER,
        "identity": make_identity("m"),
        **fields,
    }
    return Sighting(spec=ReplicaSpec(f"http://{id}"), column=column, **values)  # type: ignore[arg-type]


def words(each: Sighting) -> tuple[object, ...]:
    return each.spec, each.state, each.identity, each.load, each.foreign_requests


def test_a_snapshot_and_deltas_come_to_what_is_there(rig: Rig) -> None:
    """Random arrivals, changes and departures, and now and then a fresh snapshot in place of missed deltas."""
    dice, columns = random.Random(5), iter(range(10_000))
    there: dict[str, Sighting] = {}
    rig.mirror.apply(Snapshot(1, [], []))
    for sequence in range(2, 600):
        changed, gone = _change(dice, there, columns)
        if dice.random() < 0.1:
            _change(dice, there, columns)  # missed
            rig.mirror.apply(Snapshot(sequence, list(there.values()), []))
        else:
            rig.mirror.apply(Delta(sequence, changed, gone, []))
        assert rig.seen() == {id: words(each) for id, each in there.items()}
        assert rig.board.rows[0].applied == sequence


def _change(
    dice: random.Random, there: dict[str, Sighting], columns: Iterator[int]
) -> tuple[list[Sighting], list[str]]:
    id, gone = dice.choice("abcdef"), []
    if id in there and dice.random() < 0.3:
        del there[id]
        gone.append(id)
        if dice.random() < 0.7:
            return [], gone
    column = there[id].column if id in there else next(columns) % 64
    load = Load(at=dice.random(), running=dice.randrange(9), waiting=0, kv_used_ratio=0.0)
    states = [ReplicaState.READY, ReplicaState.FAILED, ReplicaState.DRAINING]
    there[id] = sighting(
        id, column, state=dice.choice(states), load=load, foreign_requests=load.running, lost_at=dice.random()
    )
    return [there[id]], gone


def test_what_a_new_feed_has_not_looked_at_yet_stands_as_it_was(rig: Rig) -> None:
    rig.mirror.apply(Snapshot(1, [sighting()], []))
    rig.mirror.apply(Snapshot(2, [sighting(state=ReplicaState.STARTING, is_settled=False, identity=None)], []))
    assert repr(rig.replica("a")) == "<Replica a READY 0 in flight>"
    assert (rig.lost, rig.mirror.is_settled) == ([], False)
    rig.mirror.apply(Delta(3, [sighting(state=ReplicaState.STARTING, identity=None)], [], []))
    assert repr(rig.replica("a")) == "<Replica a STARTING 0 in flight>"
    assert rig.mirror.is_settled


def test_what_others_hold_there_is_found_by_each_worker_for_itself(rig: Rig) -> None:
    identity = make_identity("m", block_size=10, num_blocks=100)
    busy = Load(at=1.0, running=3, waiting=0, kv_used_ratio=0.5)
    rig.mirror.apply(Snapshot(1, [sighting(identity=identity, load=busy, foreign_requests=3)], []))
    replica = rig.replica("a")
    assert (replica.foreign_context_tokens, replica.context_tokens) == (500, 500)
    rig.mirror.apply(Delta(2, [sighting(identity=identity, load=None)], [], []))
    assert (replica.foreign_requests, replica.foreign_context_tokens, replica.context_tokens) == (0, 0, 0)


def test_each_loss_is_heard_once(rig: Rig) -> None:
    rig.mirror.apply(Snapshot(1, [sighting(lost_at=5.0)], []))
    rig.mirror.apply(Delta(2, [sighting(lost_at=5.0, foreign_requests=1)], [], []))
    rig.mirror.apply(Delta(3, [sighting(lost_at=9.0)], [], []))
    assert rig.lost == ["a", "a"]


def test_one_that_came_back_in_another_column_is_another_replica(rig: Rig) -> None:
    """Its name left the feed and came back while we were not connected: leases of the first stay where they are."""
    rig.mirror.apply(Snapshot(1, [sighting(column=0)], []))
    before = rig.replica("a")
    lease = rig.registry.reserve(make_demand(pool=before.pool), make_decision(before))
    rig.mirror.apply(Snapshot(2, [sighting(column=1)], []))
    after, row = rig.replica("a"), rig.board.rows[0]
    assert after is not before
    rig.registry.reserve(make_demand(pool=after.pool), make_decision(after))
    assert (row.get(0).in_flight, row.get(1).in_flight) == (1, 1)
    lease.release(Outcome.OK)
    assert (row.get(0).in_flight, row.get(1).in_flight) == (0, 1)


def test_a_replica_without_a_column_is_served_by_what_we_know_alone(rig: Rig) -> None:
    rig.mirror.apply(Snapshot(1, [sighting(column=None)], []))
    replica = rig.replica("a")
    rig.registry.reserve(make_demand(pool=replica.pool), make_decision(replica))
    assert replica.in_flight == 1


def test_a_tokenizer_document_comes_with_the_first_replica_of_its_model(rig: Rig) -> None:
    heard: list[object] = []
    rig.registry.on_identified = lambda _, pool, document: heard.append((pool.model, document))
    rig.mirror.apply(Snapshot(1, [sighting()], [Document("m", {"tokenizer": "{}"})]))
    assert heard == [("m", {"tokenizer": "{}"})]


async def test_dispatches_are_taken_in_a_millisecond_at_a_time(rig: Rig) -> None:
    """What a turn of the loop has no time for waits for the next, so that nobody's tokens wait for it."""
    rig.mirror.apply(Snapshot(1, [sighting()], []))
    chains = [("a", array("Q", [number]).tobytes()) for number in range(10)]
    rig.mirror.apply(Dispatches([*chains, ("unknown", chains[0][1]), ("a", b"")]))
    assert rig.index.log == []
    taken = []
    while len(rig.index.log) < 11:
        before = len(rig.index.log)
        await asyncio.sleep(0)
        taken.append(len(rig.index.log) - before)
    assert rig.index.log == [("a", (number,)) for number in range(10)] + [("a", ())]
    assert taken == [3, 3, 3, 2]


async def test_of_too_many_dispatches_the_latest_are_left_out_but_no_loss(rig: Rig, monkeypatch: Any) -> None:
    monkeypatch.setattr(intake, "MAX_WAITING_CHAINS", 3)
    rig.mirror.apply(Snapshot(1, [sighting()], []))
    chains = [("a", array("Q", [number]).tobytes()) for number in range(5)]
    rig.mirror.apply(Dispatches([*chains, ("a", b"")]))
    await turns()
    assert rig.index.log == [("a", (0,)), ("a", (1,)), ("a", (2,)), ("a", ())]


async def test_what_replicas_tell_is_taken_in_order_and_by_slices(rig: Rig) -> None:
    rig.mirror.apply(Snapshot(1, [sighting()], []))
    changes = [held(None, [number]) for number in range(5)]
    rig.mirror.apply(Told([("a", [*changes, Emptied()]), ("unknown", changes)]))
    assert rig.index.log == []
    await asyncio.sleep(0)
    assert rig.index.log == [("a", (0,)), ("a", (1,)), ("a", (2,))]
    await turns()
    assert rig.index.log[3:] == [("a", (3,)), ("a", (4,)), ("a", ())]


async def test_more_than_can_be_taken_in_asks_for_everything_anew(rig: Rig, monkeypatch: Any) -> None:
    monkeypatch.setattr(intake, "MAX_WAITING_BLOCKS", 10)
    rig.mirror.apply(Snapshot(1, [sighting()], []))
    with pytest.raises(ValueError, match="more than 10 blocks"):
        rig.mirror.apply(Told([("a", [held(None, range(11))])]))
    rig.mirror.apply(Snapshot(2, [sighting()], []))
    rig.mirror.apply(Told([("a", [Emptied(), held(None, [7])])]))
    await asyncio.sleep(0)
    assert rig.index.log == [("a", ()), ("a", (7,))]


def test_how_well_a_replica_tells_is_known_as_the_feed_says(rig: Rig) -> None:
    rig.mirror.apply(Snapshot(1, [sighting()], []))
    rig.mirror.apply(Fed("a", FeedStatus(FeedState.SYNCED)))
    assert rig.caches.knowledge.of(rig.replica("a")).knowing is Knowing.EXACT
