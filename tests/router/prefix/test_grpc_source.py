"""Our own engine's KV events, from a server in this process: a snapshot, changes, gaps, another life, another size."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import grpc
import pytest

from pointsman.blockhash import block_hashes
from pointsman.v1 import engine_pb2, engine_pb2_grpc
from router.prefix import grpc_source
from router.prefix.changes import Change, apply
from router.prefix.follower import FeedState, Follower
from router.prefix.grpc_source import GrpcSource
from router.prefix.index import BlockIndex
from router.prefix.ledger import Distrust, Ledger

SIZE = 4
CHAIN = block_hashes(range(4 * SIZE), SIZE)
HOST = engine_pb2.MEDIUM_HOST


def stored(blocks: Sequence[int], parent: int | None = None, *, is_host: bool = False) -> engine_pb2.KvStored:
    medium = HOST if is_host else engine_pb2.MEDIUM_DEVICE
    return engine_pb2.KvStored(parent_hash=parent, block_hashes=blocks, medium=medium)


class FakeEngine(engine_pb2_grpc.EngineServicer):
    """Says what the test puts into its queue, to each subscriber from a snapshot on."""

    def __init__(self) -> None:
        self.boot_id = "first"
        self.block_size = SIZE
        self.snapshot = [stored(CHAIN[:2])]
        self.queue: asyncio.Queue[engine_pb2.KvEvent | None] = asyncio.Queue()
        self.num_subscribed = 0
        self.sequence = 0

    async def Events(self, request: object, context: object) -> AsyncIterator[engine_pb2.KvEvent]:
        self.num_subscribed += 1
        for at, chain in enumerate(self.snapshot):
            is_last = at == len(self.snapshot) - 1
            part = engine_pb2.KvSnapshot(chains=[chain], block_size=self.block_size, is_last=is_last)
            yield self._numbered(engine_pb2.KvEvent(snapshot=part))
        while (event := await self.queue.get()) is not None:
            yield self._numbered(event)

    def _numbered(self, event: engine_pb2.KvEvent) -> engine_pb2.KvEvent:
        self.sequence += 1
        event.sequence, event.boot_id = self.sequence, self.boot_id
        return event

    def say(self, **event: object) -> None:
        self.queue.put_nowait(engine_pb2.KvEvent(**event))  # type: ignore[arg-type]


class Rig:
    def __init__(self, engine: FakeEngine, target: str) -> None:
        self.engine = engine
        self.index = BlockIndex(2**20)
        self.states: list[FeedState] = []
        self.follower = Follower(Ledger(SIZE), self._tell, lambda status: self.states.append(status.state))
        self.source = GrpcSource(target, SIZE)

    def _tell(self, changes: Sequence[Change]) -> None:
        for change in changes:
            apply(self.index, "a", change)

    def depth(self) -> int:
        return self.index.match(CHAIN).get("a", 0)

    def is_synced(self) -> bool:
        return self.follower.status.state is FeedState.SYNCED


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  (sockets)
            await asyncio.sleep(0.002)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_source, "RETRY_S", 0.01)


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[FakeEngine, str]]:
    engine, server = FakeEngine(), grpc.aio.server()
    engine_pb2_grpc.add_EngineServicer_to_server(engine, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield engine, f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@asynccontextmanager
async def following() -> AsyncIterator[Rig]:
    async with serving() as (engine, target):
        rig = Rig(engine, target)
        task = asyncio.create_task(rig.source.follow(rig.follower))
        try:
            await until(rig.is_synced)
            yield rig
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def test_a_snapshot_and_changes_are_known_in_both_memories() -> None:
    async with following() as rig:
        assert rig.depth() == 2
        rig.engine.say(stored=stored(CHAIN[2:4], CHAIN[1], is_host=True))
        await until(lambda: rig.depth() == 4)
        assert rig.index.match_device(CHAIN, rig.index.match(CHAIN)) == {"a": 2}
        rig.engine.say(removed=engine_pb2.KvRemoved(block_hashes=CHAIN[3:], medium=HOST))
        await until(lambda: rig.depth() == 3)
        rig.engine.say(cleared=engine_pb2.KvCleared())
        await until(lambda: rig.depth() == 0)
        assert rig.is_synced()


async def test_a_gap_is_made_good_by_another_subscription() -> None:
    async with following() as rig:
        rig.engine.snapshot = [stored(CHAIN[:1]), stored(CHAIN[1:3], CHAIN[0])]
        rig.engine.sequence += 5
        rig.engine.say(stored=stored(CHAIN[2:4], CHAIN[1]))
        await until(lambda: rig.engine.num_subscribed == 2 and rig.depth() == 3)
        assert FeedState.ABSENT in rig.states


async def test_another_life_of_the_engine_leaves_no_stale_block() -> None:
    async with following() as rig:
        rig.engine.boot_id = "second"
        rig.engine.snapshot = [engine_pb2.KvStored()]
        rig.engine.say(cleared=engine_pb2.KvCleared())
        await until(lambda: rig.engine.num_subscribed == 2 and rig.is_synced())
        assert rig.depth() == 0


async def test_a_stream_that_ends_is_begun_again() -> None:
    async with following() as rig:
        rig.engine.queue.put_nowait(None)
        await until(lambda: rig.engine.num_subscribed == 2 and rig.depth() == 2)


async def test_a_replica_that_was_lost_is_asked_anew() -> None:
    async with following() as rig:
        rig.index.remove("a")
        rig.source.begin_anew()
        await until(lambda: rig.engine.num_subscribed == 2 and rig.depth() == 2)


async def test_blocks_of_another_size_are_not_believed() -> None:
    async with serving() as (engine, target):
        engine.block_size = 8
        rig = Rig(engine, target)
        with pytest.raises(Distrust, match="its blocks have 8 tokens, ours 4"):
            await rig.source.follow(rig.follower)
        assert rig.depth() == 0


async def test_an_engine_that_is_not_there_is_waited_for() -> None:
    rig = Rig(FakeEngine(), "127.0.0.1:9")
    task = asyncio.create_task(rig.source.follow(rig.follower))
    await until(lambda: FeedState.ABSENT in rig.states)
    assert "UNAVAILABLE" in rig.follower.status.reason
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert task.cancelled()
