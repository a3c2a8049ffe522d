"""What the engine says of its KV cache is what the router then believes of it: our publisher and our readers, over real
ZMQ and gRPC, with blocks that come, go, move to the host tier and back, of several adapters and salts."""

import asyncio
import contextlib
from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
import zmq.asyncio

from engine.control import Control
from engine.loop import EngineLoop
from engine.prefixes import Medium
from engine.scheduler import Scheduler
from engine.sequence import Request
from engine.server.events import KvEventPublisher, KvEventsConfig
from engine.server.grpc import EngineService, grpc_port
from engine.server.http import Service
from engine.transfer import KvTransfer
from router.prefix.changes import apply
from router.prefix.follower import FeedState, Follower
from router.prefix.grpc_source import GrpcSource
from router.prefix.index import BlockIndex
from router.prefix.ledger import Ledger
from router.prefix.zmq_source import ZmqSource
from tests.engine.requests import BLOCK_SIZE, add_adapters, core, next_number, request, tokens_by

Held = dict[Medium, set[int]]


@dataclass(eq=False)
class Reader:
    """What a router believes of the replica `a`."""

    index: BlockIndex = field(default_factory=lambda: BlockIndex(2**22))
    follower: Follower = field(init=False)

    def __post_init__(self) -> None:
        self.follower = Follower(Ledger(BLOCK_SIZE), self._tell, lambda status: None)

    def _tell(self, changes: Sequence[Any]) -> None:
        for change in changes:
            apply(self.index, "a", change)

    def believes(self) -> Held:
        found: Held = {medium: set() for medium in Medium}
        for _, blocks, is_host in self.index.facts("a"):
            found[Medium.CPU if is_host else Medium.GPU] |= set(array("Q", blocks))
        return found


def held(scheduler: Scheduler) -> Held:
    """What can be found in the cache; the others, whose beginning is gone, nobody can use."""
    found: Held = {medium: set() for medium in Medium}
    alive = {prefix for medium in Medium for prefix in scheduler.pool.held(medium)}
    for medium in Medium:
        for prefix in scheduler.pool.held(medium):
            before = prefix.parent
            while before is not None and before in alive:
                before = before.parent
            if before is None:
                found[medium].add(prefix.hash)
    return found


@asynccontextmanager
async def running(zmq_address: str, replay_address: str) -> AsyncIterator[tuple[EngineLoop, int]]:
    """An engine that counts instead of computing, and its gRPC port."""
    counting = core(num_blocks=20, num_host_blocks=12, num_slots=2, max_num_seqs=4)
    engine = EngineLoop(counting, lambda batch: tokens_by(next_number, batch))
    add_adapters(engine.core.scheduler, "red", "blue")
    config = KvEventsConfig(enable_kv_cache_events=True, endpoint=zmq_address, replay_endpoint=replay_address)
    publisher = KvEventPublisher(config, BLOCK_SIZE)
    publisher.open()
    engine.core.scheduler.pool.records_changes = True
    engine.listeners.append(publisher.publish)
    engine.start()
    part = cast(Any, None)
    service = Service(engine, cast(Any, _NoTokenizer()), "m", "m", vocab_size=1000, max_model_len=80)
    servicer = EngineService(service, cast("Control[Any]", part), cast(KvTransfer, part), "boot")
    try:
        async with grpc_port("127.0.0.1", 0, servicer) as port:
            yield engine, port
    finally:
        engine.stop("the test is over")
        assert await asyncio.to_thread(engine.join, 10)
        publisher.close()


class _NoTokenizer:
    """The service is asked for nothing that needs one."""

    eos_token_ids = ()
    chat_template = None

    def to_json(self) -> str:
        return "{}"


async def work(engine: EngineLoop, random: Random, num_requests: int) -> None:
    async def ask(asked: Request) -> None:
        with engine.submit(asked) as outputs:
            async for _ in outputs:
                pass

    for _ in range(num_requests // 3):
        async with asyncio.TaskGroup() as tasks:
            for _ in range(3):
                tasks.create_task(ask(some_request(random)))


def some_request(random: Random) -> Request:
    start = random.choice([0, 0, 200, 400])
    prompt = range(start, start + random.randint(1, 30))
    adapter, salt = random.choice([None, None, "red", "blue"]), random.choice([None, None, "tenant"])
    return request(prompt, adapter=adapter, salt=salt, max_tokens=random.randint(1, 8))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("way", ["zmq", "zmq, late", "grpc", "grpc, late"])
async def test_the_router_believes_what_the_engine_holds(tmp_path: Path, way: str, seed: int) -> None:
    random, reader = Random(seed), Reader()
    addresses = f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay"
    context = zmq.asyncio.Context()
    try:
        async with running(*addresses) as (engine, port):
            if "late" in way:
                await work(engine, random, 30)
            source = ZmqSource(*addresses, context) if "zmq" in way else GrpcSource(f"127.0.0.1:{port}", BLOCK_SIZE)
            following = asyncio.create_task(source.follow(reader.follower))
            await until_equal(engine, reader)
            await work(engine, random, 60)
            assert engine.core.scheduler.pool.host.num_cached > 0
            await until_equal(engine, reader)
            assert reader.believes()[Medium.CPU]
            await engine.call(engine.core.scheduler.forget_kv)
            await until_equal(engine, reader)
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await following
    finally:
        context.destroy(linger=0)


async def until_equal(engine: EngineLoop, reader: Reader) -> None:
    """Synced, and believing what is held, within some seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(10):
            while reader.follower.status.state is not FeedState.SYNCED or reader.believes() != held(
                engine.core.scheduler
            ):
                await engine.call(lambda: None)
    assert reader.follower.status.state is FeedState.SYNCED, reader.follower
    assert reader.believes() == held(engine.core.scheduler)
