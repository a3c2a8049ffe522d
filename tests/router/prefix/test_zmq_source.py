"""KV events over real ZMQ sockets: a late start, lost batches, restarts, floods and nonsense; right again each time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import zmq.asyncio

from pointsman.blockhash import block_hashes
from router.prefix import zmq_source
from router.prefix.changes import apply
from router.prefix.follower import FeedState, Follower
from router.prefix.index import BlockIndex
from router.prefix.ledger import Distrust, Ledger
from router.prefix.zmq_source import ZmqSource
from tests.router.prefix.publisher import CLEARED, Publisher, publishing, removed, stored

SIZE = 4


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq_source, "RESYNC_PAUSE_S", 0.01)
    monkeypatch.setattr(zmq_source, "MAX_RESYNC_PAUSE_S", 0.02)
    monkeypatch.setattr(zmq_source, "REPLAY_TIMEOUT_S", 0.3)


class Listener:
    """A source, its follower, and an index that believes both."""

    def __init__(self, publisher: Publisher, *, has_replay: bool = True, rank: int | None = None) -> None:
        self.index = BlockIndex(2**22)
        self.states: list[FeedState] = []
        self.follower = Follower(Ledger(SIZE), self._tell, lambda status: self.states.append(status.state), rank=rank)
        replay = publisher.replay_address if has_replay else None
        self.source = ZmqSource(publisher.address, replay, publisher.context)

    def _tell(self, changes: Sequence[Any]) -> None:
        for change in changes:
            apply(self.index, "a", change)

    def depth(self, ids: Sequence[int]) -> int:
        return self.index.match(block_hashes(ids, SIZE)).get("a", 0)

    def is_in(self, state: FeedState) -> bool:
        return self.follower.status.state is state


@asynccontextmanager
async def listening(publisher: Publisher, **fields: Any) -> AsyncIterator[Listener]:
    listener = Listener(publisher, **fields)
    task = asyncio.create_task(listener.source.follow(listener.follower))
    await publisher.has_listener()
    try:
        yield listener
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Distrust):
            await task


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  (sockets of another thread)
            await asyncio.sleep(0.002)


def ids(num_blocks: int, first: int = 1) -> list[int]:
    return list(range(first, first + SIZE * num_blocks))


async def test_what_is_published_is_known_and_what_is_removed_is_not() -> None:
    async with publishing() as publisher, listening(publisher) as listener:
        await publisher.publish(stored([1, 2, 3], ids(3)))
        await until(lambda: listener.depth(ids(3)) == 3)
        await publisher.publish(removed(3), stored([4], ids(1, 50)))
        await until(lambda: listener.depth(ids(1, 50)) == 1)
        assert listener.depth(ids(3)) == 2
        await publisher.publish(CLEARED)
        await until(lambda: listener.index.num_blocks("a") == 0)
        assert listener.is_in(FeedState.SYNCED)


@pytest.mark.parametrize("has_topic", [True, False])
async def test_a_fresh_router_knows_at_once_what_was_said_before_it_came(has_topic: bool) -> None:
    async with publishing(has_topic=has_topic) as publisher:
        await publisher.publish(stored([1, 2], ids(2)))
        async with listening(publisher) as listener:
            await until(lambda: listener.is_in(FeedState.SYNCED))
            assert listener.depth(ids(2)) == 2


async def test_a_fresh_router_that_the_replay_does_not_reach_back_for_says_that_it_is_late() -> None:
    async with publishing(num_kept=1) as publisher:
        await publisher.publish(stored([1], ids(1)))
        await publisher.publish(stored([5], ids(1, 50)))
        async with listening(publisher) as listener:
            await until(lambda: listener.is_in(FeedState.LATE))
            assert (listener.depth(ids(1)), listener.depth(ids(1, 50))) == (0, 1)
            assert "not so far back" in listener.follower.status.reason
            await publisher.publish(CLEARED)
            await until(lambda: listener.is_in(FeedState.SYNCED))


async def test_a_lost_batch_is_had_again_within_one_resync() -> None:
    """Pitfall: after a lost batch the index freezes, and its source connects again and again."""
    async with publishing() as publisher, listening(publisher) as listener:
        await publisher.publish(stored([1], ids(1)))
        await until(lambda: listener.depth(ids(1)) == 1)
        asked = publisher.num_asked
        await publisher.publish(stored([2], ids(1, 20)), removed(1), is_lost=True)
        await publisher.publish(stored([3], ids(1, 40)))
        await until(lambda: listener.depth(ids(1, 40)) == 1)
        assert (listener.depth(ids(1)), listener.depth(ids(1, 20))) == (0, 1)
        assert publisher.num_asked == asked + 1
        assert listener.is_in(FeedState.SYNCED)


async def test_without_a_replay_a_lost_batch_clears_the_replica() -> None:
    async with publishing() as publisher, listening(publisher, has_replay=False) as listener:
        await publisher.publish(stored([1], ids(1)))
        await until(lambda: listener.depth(ids(1)) == 1)
        assert listener.is_in(FeedState.SYNCED)  # it heard the first batch of all
        await publisher.publish(removed(1), is_lost=True)
        await publisher.publish(stored([3], ids(1, 40)))
        await until(lambda: listener.depth(ids(1, 40)) == 1)
        assert listener.depth(ids(1)) == 0
        assert listener.is_in(FeedState.LATE)
        assert "no replay" in listener.follower.status.reason


async def test_a_batch_that_is_lost_for_good_clears_the_replica() -> None:
    async with publishing(num_kept=1) as publisher, listening(publisher) as listener:
        await publisher.publish(stored([1], ids(1)))
        await until(lambda: listener.depth(ids(1)) == 1)
        await publisher.publish(removed(1), is_lost=True)
        await publisher.publish(stored([3], ids(1, 40)))
        await until(lambda: listener.depth(ids(1, 40)) == 1)
        assert listener.depth(ids(1)) == 0


async def test_a_replay_that_does_not_answer_clears_the_replica_too() -> None:
    async with publishing() as publisher, listening(publisher) as listener:
        await publisher.publish(stored([1], ids(1)))
        await until(lambda: listener.depth(ids(1)) == 1)
        publisher.is_deaf = True
        await publisher.publish(removed(1), is_lost=True)
        await publisher.publish(stored([3], ids(1, 40)))
        await until(lambda: listener.depth(ids(1, 40)) == 1)
        assert listener.depth(ids(1)) == 0
        assert listener.is_in(FeedState.LATE)


async def test_an_engine_that_restarts_leaves_no_stale_block() -> None:
    """Pitfall: the engine restarts, its numbers go back, and stale blocks stay."""
    async with publishing() as publisher, listening(publisher) as listener:
        await publisher.publish(stored([1], ids(1)))
        await publisher.publish(stored([2], ids(1, 20)))
        await until(lambda: listener.depth(ids(1, 20)) == 1)
        await publisher.restart()
        await publisher.has_listener()
        await publisher.publish(stored([9], ids(1, 60)))
        await until(lambda: listener.depth(ids(1, 60)) == 1)
        assert (listener.depth(ids(1)), listener.depth(ids(1, 20))) == (0, 0)
        assert listener.is_in(FeedState.SYNCED)


async def test_a_restart_whose_first_batches_were_missed_is_noticed_by_what_is_in_them() -> None:
    """Its numbers have gone further than ours before we could hear it: that looks like a gap, and is another life."""
    async with publishing() as publisher, listening(publisher) as listener:
        await publisher.publish(stored([1], ids(1)))
        await until(lambda: listener.depth(ids(1)) == 1)
        await publisher.restart()
        await publisher.has_listener()
        await publisher.publish(stored([2], ids(1, 20)), is_lost=True)
        await publisher.publish(stored([3], ids(1, 40)), is_lost=True)
        await publisher.publish(stored([4], ids(1, 60)))
        await until(lambda: listener.depth(ids(1, 60)) == 1)
        assert [listener.depth(ids(1, first)) for first in (1, 20, 40, 60)] == [0, 1, 1, 1]


async def test_a_replica_that_was_lost_is_asked_anew() -> None:
    async with publishing() as publisher, listening(publisher) as listener:
        await publisher.publish(stored([1], ids(1)))
        await until(lambda: listener.depth(ids(1)) == 1)
        listener.index.remove("a")
        listener.source.begin_anew()
        await until(lambda: listener.depth(ids(1)) == 1)
        await publisher.publish(stored([2], ids(1, 20)))
        await until(lambda: listener.depth(ids(1, 20)) == 1)


async def test_a_malformed_batch_clears_the_replica_and_what_follows_counts() -> None:
    async with publishing() as publisher, listening(publisher) as listener:
        await publisher.publish(stored([1], ids(1)))
        await publisher.publish(payload=b"\xc1 nonsense")
        await publisher.publish(stored([2], ids(1, 20)))
        await until(lambda: listener.depth(ids(1, 20)) == 1)
        assert listener.depth(ids(1)) == 0
        assert listener.is_in(FeedState.LATE)
        assert (listener.follower.num_bad, listener.follower.num_batches) == (1, 2)


async def test_hashes_that_lie_end_the_trust() -> None:
    async with publishing() as publisher:
        listener = Listener(publisher)
        await publisher.publish(stored([1], ids(1)))
        await publisher.publish(stored([1], ids(1, 20)))
        with pytest.raises(Distrust):
            await listener.source.follow(listener.follower)
        assert listener.is_in(FeedState.DISTRUSTED)
        assert listener.index.num_blocks("a") == 0


async def test_the_feed_of_another_rank_is_not_believed() -> None:
    async with publishing() as publisher:
        listener = Listener(publisher, rank=3)
        await publisher.publish(stored([1], ids(1)))
        with pytest.raises(Distrust, match="rank 0, not 3"):
            await listener.source.follow(listener.follower)


async def test_a_flood_is_cut_and_comes_right_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq_source, "MAX_WAITING_BATCHES", 50)
    async with publishing(num_kept=200_000) as publisher, listening(publisher) as listener:
        await publisher.publish(stored([1], ids(1)))
        await until(lambda: listener.depth(ids(1)) == 1)
        await publisher.publish(stored([2], ids(1, 20)), times=4000)
        await publisher.publish(removed(1), is_lost=True)
        await publisher.publish(stored([3], ids(1, 40)))
        await until(lambda: listener.depth(ids(1, 40)) == 1)
        assert listener.depth(ids(1)) == 0


async def test_messages_that_have_no_number_are_not_believed() -> None:
    async with publishing() as publisher, listening(publisher) as listener:
        assert publisher._live is not None
        await publisher.publish(stored([1], ids(1)))
        await until(lambda: listener.depth(ids(1)) == 1)  # by replay, it may be: what is live is not heard yet
        for message in ([b"only one part"], [b"", b"short", b""]):
            num_bad = listener.follower.num_bad
            async with asyncio.timeout(30):
                while listener.follower.num_bad == num_bad:
                    await publisher._live.send_multipart(message)
                    await asyncio.sleep(0.05)
        await publisher.publish(stored([2], ids(1, 20)))
        await until(lambda: listener.depth(ids(1, 20)) == 1)


async def test_an_engine_that_is_not_there_yet_is_heard_once_it_is() -> None:
    context = zmq.asyncio.Context()
    async with publishing() as publisher:
        publisher.close()
        listener = Listener(publisher)
        task = asyncio.create_task(listener.source.follow(listener.follower))
        await until(lambda: listener.is_in(FeedState.LATE))
        await publisher.reopen()
        await publisher.has_listener()
        await publisher.publish(stored([1], ids(1)))
        await until(lambda: listener.depth(ids(1)) == 1)
        assert listener.is_in(FeedState.SYNCED)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    context.destroy(linger=0)
