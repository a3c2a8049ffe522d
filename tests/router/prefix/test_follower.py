"""A replica's feed from batches to changes, and what it says of itself on the way."""

from collections.abc import Sequence

import msgspec
import pytest

from router.prefix.changes import Change, Emptied
from router.prefix.events import Batch, Cleared, Stored
from router.prefix.follower import FeedState, FeedStatus, Follower
from router.prefix.ledger import Distrust, Ledger


class Rig:
    def __init__(self, rank: int | None = None) -> None:
        self.changes: list[Change] = []
        self.statuses: list[FeedStatus] = []
        self.follower = Follower(Ledger(2), self._tell, self.statuses.append, rank)

    def _tell(self, changes: Sequence[Change]) -> None:
        self.changes += changes


STORED = Stored([1], None, [1, 2], 2)


def test_it_is_synced_once_nothing_is_missed_and_late_where_something_was() -> None:
    rig = Rig()
    rig.follower.reset("it begins")
    rig.follower.synced(is_whole=False, reason="no replay")
    rig.follower.synced(is_whole=False, reason="no replay")
    rig.follower.synced(is_whole=True, reason="no replay")
    assert rig.statuses == [
        FeedStatus(FeedState.SYNCING, "it begins"),
        FeedStatus(FeedState.LATE, "no replay"),
        FeedStatus(FeedState.SYNCED),
    ]
    assert rig.changes == [Emptied()]


def test_a_late_one_is_exact_from_the_moment_that_all_is_cleared() -> None:
    rig = Rig()
    rig.follower.synced(is_whole=False, reason="no replay")
    rig.follower.take(Batch([STORED]))
    assert rig.follower.status.state is FeedState.LATE
    rig.follower.take(Batch([Cleared()]))
    assert rig.statuses[-1] == FeedStatus(FeedState.SYNCED)


def test_a_bad_batch_forgets_what_was_believed() -> None:
    rig = Rig()
    rig.follower.synced(is_whole=True)
    rig.follower.take(Batch([STORED]))
    rig.follower.hear(b"\xc1")
    assert rig.changes[-1] == Emptied()
    assert rig.statuses[-1].state is FeedState.LATE
    assert "cannot be understood" in rig.statuses[-1].reason
    rig.follower.hear(msgspec.msgpack.encode([0, [["BlockStored", [5], None, [1, 2], 2]]]))
    assert rig.follower.ledger.num_blocks == 1


def test_another_rank_or_a_lie_ends_the_trust() -> None:
    for rank, batches in ((1, [Batch([], rank=0)]), (None, [Batch([STORED]), Batch([Stored([1], None, [3, 4], 2)])])):
        rig = Rig(rank)
        *before, last = batches
        for batch in before:
            rig.follower.take(batch)
        with pytest.raises(Distrust):
            rig.follower.take(last)
        assert rig.statuses[-1].state is FeedState.DISTRUSTED
        assert rig.changes[-1] == Emptied()
        assert rig.follower.ledger.num_blocks == 0
    Rig(1).follower.take(Batch([STORED], rank=1))
    Rig(1).follower.take(Batch([STORED], rank=None))


def test_its_repr_tells_the_state() -> None:
    rig = Rig()
    rig.follower.lose("nobody answers")
    assert repr(rig.follower) == "<Follower absent <Ledger 0 blocks, 0 in host memory>>"
