"""Who is followed, at which address, and what one bad feed means for the others."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from pointsman.blockhash import block_hashes
from router.prefix import feeds as feeds_module
from router.prefix.changes import apply
from router.prefix.feeds import FeedAddress, Feeds
from router.prefix.follower import FeedState, FeedStatus
from router.prefix.index import BlockIndex
from router.spec import ReplicaSpec
from tests.router.prefix.publisher import Publisher, publishing, stored

SIZE = 4


class Rig:
    def __init__(self) -> None:
        self.index = BlockIndex(2**22)
        self.heard: list[tuple[str, FeedState]] = []
        self.feeds = Feeds(self._tell, lambda id, status: self.heard.append((id, status.state)))

    def _tell(self, id: str, changes: object) -> None:
        for change in changes:  # type: ignore[attr-defined]
            apply(self.index, id, change)

    def follow(self, id: str, publisher: Publisher, block_size: int = SIZE) -> None:
        spec = ReplicaSpec(f"http://{id}", kv=publisher.address, replay=publisher.replay_address)
        self.feeds.follow(id, spec, FeedAddress.of(spec, None), block_size)

    def depths(self, num_blocks: int = 2) -> dict[str, int]:
        return dict(self.index.match(block_hashes(range(num_blocks * SIZE), SIZE)))


@asynccontextmanager
async def running() -> AsyncIterator[Rig]:
    rig = Rig()
    task = asyncio.create_task(rig.feeds.run())
    try:
        yield rig
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  (sockets of another thread)
            await asyncio.sleep(0.002)


def spec(**fields: object) -> ReplicaSpec:
    return ReplicaSpec("http://[::1]:8000", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "engine", "address"),
    [
        (spec(), "vllm", None),
        (spec(kv="tcp://a:1"), "vllm", FeedAddress("tcp://a:1")),
        (spec(kv="tcp://a:1", replay="tcp://a:2", rank=1), None, FeedAddress("tcp://a:1", "tcp://a:2", 1)),
        (spec(kv="auto"), "vllm", FeedAddress("tcp://[::1]:5557", "tcp://[::1]:5558")),
        (spec(kv="auto", rank=3), "sglang", FeedAddress("tcp://[::1]:5560", "tcp://[::1]:5561", 3)),
        (spec(kv="auto"), "tensorrt-llm", FeedAddress("http://[::1]:8000/kv_cache_events")),
    ],
)
def test_a_feed_is_where_the_spec_or_the_convention_says(
    given: ReplicaSpec, engine: str | None, address: FeedAddress | None
) -> None:
    assert FeedAddress.of(given, engine) == address


async def test_each_replica_is_heard_on_its_own() -> None:
    async with publishing() as one, publishing() as other, running() as rig:
        rig.follow("a", one)
        rig.follow("b", other)
        await one.publish(stored([1, 2], range(8)))
        await other.publish(stored([7], range(4)))
        await until(lambda: rig.depths() == {"a": 2, "b": 1})
        assert rig.feeds.status("a") == FeedStatus(FeedState.SYNCED)
        assert rig.feeds.status("c") == FeedStatus(FeedState.ABSENT)
        assert set(rig.feeds.followers()) == {"a", "b"}
        assert repr(rig.feeds) == "<Feeds of 2 replicas>"


async def test_one_that_is_told_again_goes_on_and_one_that_is_gone_is_heard_no_more() -> None:
    async with publishing() as publisher, running() as rig:
        rig.follow("a", publisher)
        await publisher.publish(stored([1], range(4)))
        await until(lambda: rig.depths() == {"a": 1})
        asked = publisher.num_asked
        rig.follow("a", publisher)
        await publisher.publish(stored([2], range(4, 8), parent=1))
        await until(lambda: rig.depths() == {"a": 2})
        assert publisher.num_asked == asked
        rig.feeds.keep({"b"})
        assert rig.heard[-1] == ("a", FeedState.ABSENT)
        assert not rig.feeds.followers()


async def test_another_block_size_begins_anew() -> None:
    async with publishing() as publisher, running() as rig:
        rig.follow("a", publisher)
        await publisher.publish(stored([1, 2], range(8)))
        await until(lambda: rig.depths() == {"a": 2})
        rig.follow("a", publisher, block_size=8)
        (whole,) = block_hashes(range(8), 8)
        await until(lambda: rig.index.match([whole]) == {"a": 1})
        assert rig.depths() == {}


async def test_a_feed_that_lies_is_not_believed_for_a_while_and_the_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds_module, "DISTRUST_S", 0.05)
    async with publishing() as liar, publishing(num_kept=1) as honest, running() as rig:
        rig.follow("liar", liar)
        rig.follow("honest", honest)
        await honest.publish(stored([1, 2], range(8)))
        await liar.publish(stored([1], range(4)))
        await liar.publish(stored([1], range(4, 8)))
        await until(lambda: ("liar", FeedState.DISTRUSTED) in rig.heard)
        await until(lambda: rig.depths() == {"honest": 2})
        await until(lambda: rig.heard.count(("liar", FeedState.DISTRUSTED)) > 1)


async def test_a_replica_that_was_lost_is_asked_anew_and_one_that_nobody_follows_is_not() -> None:
    async with publishing() as publisher, running() as rig:
        rig.follow("a", publisher)
        await publisher.publish(stored([1], range(4)))
        await until(lambda: rig.depths() == {"a": 1})
        rig.index.remove("a")
        rig.feeds.lost("a")
        rig.feeds.lost("b")
        await until(lambda: rig.depths() == {"a": 1})


async def test_who_is_followed_before_it_runs_is_heard_once_it_does() -> None:
    async with publishing() as publisher:
        await publisher.publish(stored([1], range(4)))
        rig = Rig()
        rig.follow("a", publisher)
        task = asyncio.create_task(rig.feeds.run())
        await until(lambda: rig.depths() == {"a": 1})
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
