"""Index, feeds and knowledge as one: what a replica tells, what is lost, who is gone."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from pointsman.blockhash import block_hashes
from router.core import Pool, Replica
from router.prefix.caches import Caches
from router.prefix.changes import Change
from router.prefix.follower import FeedState, FeedStatus
from router.prefix.index import BlockIndex
from router.prefix.knowledge import Knowing
from router.spec import ReplicaSpec
from tests.router.nouns import make_replica
from tests.router.prefix.publisher import Publisher, publishing, stored

IDS = list(range(32))
CHAIN = block_hashes(IDS, 16)


class Rig:
    def __init__(self, *, listens: bool = True) -> None:
        self.heard: list[tuple[str, object]] = []
        self.caches = Caches(
            BlockIndex(2**20), lambda _: True, listens, on_changes=self._changed, on_status=self._became
        )

    def _changed(self, id: str, changes: Sequence[Change]) -> None:
        self.heard += [(id, change) for change in changes]

    def _became(self, id: str, status: FeedStatus) -> None:
        self.heard.append((id, status.state))

    def add(self, publisher: Publisher) -> Replica:
        replica = make_replica("a", pool=Pool("m", 16), kv_capacity_tokens=64 * 16)
        replica.spec = ReplicaSpec("http://a", kv=publisher.address, replay=publisher.replay_address)
        self.caches.identified(replica, Pool("m", 16))
        return replica

    def depth(self) -> int:
        return self.caches.index.match(CHAIN).get("a", 0)


@asynccontextmanager
async def listening(rig: Rig) -> AsyncIterator[None]:
    task = asyncio.create_task(rig.caches.listen())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  (sockets of another thread)
            await asyncio.sleep(0.002)


async def test_what_a_replica_tells_is_in_the_index_and_it_is_known_exactly() -> None:
    rig = Rig()
    async with publishing() as publisher, listening(rig):
        replica = rig.add(publisher)
        await publisher.publish(stored([1, 2], IDS))
        await until(lambda: rig.depth() == 2)
        assert rig.caches.knowledge.of(replica).knowing is Knowing.EXACT
        assert rig.caches.statuses() == {"a": FeedStatus(FeedState.SYNCED)}
        assert ("a", FeedState.SYNCED) in rig.heard
        assert rig.caches.index.capacity("a") is None
        rig.caches.lost("a")
        assert rig.depth() == 0
        await until(lambda: rig.depth() == 2)
        rig.caches.sweep(0.0, [])
        assert rig.caches.statuses() == {}


async def test_one_that_is_told_by_another_process_listens_to_nobody() -> None:
    rig = Rig(listens=False)
    async with publishing() as publisher, listening(rig):
        rig.add(publisher)
        assert rig.caches.statuses() == {}
        assert rig.caches.index.capacity("a") == 64
        rig.caches.tell_status("a", FeedStatus(FeedState.SYNCED))
        assert rig.caches.index.capacity("a") is None
    assert repr(rig.caches).startswith("<Caches <BlockIndex 0 blocks")
