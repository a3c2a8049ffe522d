"""Queues of several routers over one Redis: what they do together, and each alone while it is away."""

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import pytest

from router.admission import ration as module
from router.admission.bands import BandTerms
from router.admission.capacity import Room
from router.admission.queue import LocalQueue
from router.admission.ration import Ration
from router.admission.turns import Mode
from router.core import Decision, Demand, Lease, Outcome, Pool, Standing
from router.store.connection import Store
from tests.router.nouns import make_demand, make_replica
from tests.router.store.servers import Server, cluster, free_ports, moving_address, server

CAPACITY = 6
ROOM = Room(CAPACITY)


@dataclass(eq=False)
class Engines:
    """Replicas that all routers place on, in one count. `most` is what was open at once."""

    most: int = 0
    is_full: bool = False
    leases: list[Lease] = field(default_factory=list)
    queues: list[LocalQueue] = field(default_factory=list)

    def place(self, demand: Demand) -> Lease | None:
        if self.is_full:
            return None
        decision = Decision(make_replica("a"), "p", 0, demand.prompt.num_tokens, 0.0, {})
        lease = Lease(demand, decision, time.monotonic(), lambda _: None, self._freed)
        self.leases.append(lease)
        self.most = max(self.most, len(self.leases))
        return lease

    def has_ready(self, demand: Demand) -> bool:
        return True

    def _freed(self, lease: Lease) -> None:
        self.leases.remove(lease)
        for queue in self.queues:
            queue.pump()


@dataclass(eq=False)
class Hosts:
    """Routers of one process, each with its own connection, as hosts would have."""

    stores: list[Store]
    queues: list[LocalQueue]
    engines: Engines

    @property
    def modes(self) -> set[Mode]:
        return {pool.turns.mode for queue in self.queues if queue.ration for pool in queue.ration.pools.values()}

    def num_turns(self) -> int:
        return sum(pool.num_turns for queue in self.queues if queue.ration for pool in queue.ration.pools.values())

    async def ask(self, number: int, busy_s: float = 0.01, **fields: object) -> None:
        now = time.monotonic()
        demand = make_demand(str(number), arrived=now, deadline=now + 20.0, **fields)  # type: ignore[arg-type]
        lease = await self.queues[number % len(self.queues)].place(demand)
        await asyncio.sleep(busy_s)
        lease.release(Outcome.OK)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SPREAD_S", 0.01)


@pytest.fixture(params=["6.2", "8.2"])
def redis(request: pytest.FixtureRequest) -> Iterator[Server]:
    with server(request.param) as running:
        yield running


@contextlib.asynccontextmanager
async def hosts(url: str, number: int = 3, room: Room = ROOM) -> AsyncIterator[Hosts]:
    engines = Engines()
    async with contextlib.AsyncExitStack() as stack:
        stores, queues = [], []
        for at in range(number):
            store = Store(url, timeout_s=20.0, random=lambda: 0.0)
            ration = Ration(store, f"host{at}", BandTerms(), time.monotonic, random.random, lambda _: room)
            store.on_change = partial(_changed, ration)
            queue = LocalQueue(engines, time.monotonic, 10_000, 20.0, ration=ration)
            queue._line_of(Pool("m"))
            stores.append(store)
            queues.append(queue)
            await stack.enter_async_context(store.opened())
            await stack.enter_async_context(ration.opened())
        engines.queues = queues
        yield Hosts(stores, queues, engines)


def _changed(ration: Ration, _: bool) -> None:
    ration.store_changed()


async def until(condition: Callable[[], object], patience_s: float = 30.0) -> None:
    async with asyncio.timeout(patience_s):
        while not condition():  # noqa: ASYNC110  (another process is waited for)
            await asyncio.sleep(0.005)


async def test_a_request_that_fits_runs_at_once_without_a_word_to_redis(redis: Server) -> None:
    async with hosts(redis.url) as all_hosts:
        await until(lambda: all_hosts.modes == {Mode.FREE})
        await asyncio.sleep(0.1)
        os.kill(redis.pid, signal.SIGSTOP)
        try:
            place = all_hosts.queues[0].place(make_demand("r", deadline=time.monotonic() + 9.0))
            with pytest.raises(StopIteration) as done:
                place.send(None)
            done.value.value.release(Outcome.OK)
        finally:
            os.kill(redis.pid, signal.SIGCONT)


async def test_under_load_all_are_served_and_the_replicas_never_hold_more_than_they_can(redis: Server) -> None:
    async with hosts(redis.url) as all_hosts:
        await until(lambda: all_hosts.modes == {Mode.FREE})
        await asyncio.gather(*(all_hosts.ask(n, standing=Standing(tenant=f"t{n % 4}")) for n in range(200)))
        assert 1 < all_hosts.engines.most <= CAPACITY
        assert all_hosts.engines.leases == []
        await until(lambda: all_hosts.modes == {Mode.FREE})
        assert all(queue.num_waiting == 0 for queue in all_hosts.queues)


async def test_under_load_the_replicas_hold_no_more_tokens_than_there_are_but_for_one_request_a_router(
    redis: Server,
) -> None:
    price, number = 193, 3  # of a prompt, of an answer whose length nobody knows, and one
    async with hosts(redis.url, number, Room(100, 5 * price)) as all_hosts:
        await until(lambda: all_hosts.modes == {Mode.FREE})
        await asyncio.gather(*(all_hosts.ask(n) for n in range(60)))
        assert 1 < all_hosts.engines.most <= 5 + number
        pools = [pool for queue in all_hosts.queues if queue.ration for pool in queue.ration.pools.values()]
        assert [pool.turns.used_tokens for pool in pools] == [0, 0, 0]


async def test_clients_that_leave_lose_no_place(redis: Server) -> None:
    async with hosts(redis.url) as all_hosts:
        await until(lambda: all_hosts.modes == {Mode.FREE})
        tasks = [asyncio.ensure_future(all_hosts.ask(n)) for n in range(150)]
        for task in random.sample(tasks, 75):
            await asyncio.sleep(0.002)
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(end is None or isinstance(end, asyncio.CancelledError) for end in ends)
        for lease in list(all_hosts.engines.leases):  # of those that were cancelled while served
            lease.release(Outcome.CLIENT_GONE)
        await until(lambda: all_hosts.modes == {Mode.FREE})
        used = [pool.turns.used for queue in all_hosts.queues if queue.ration for pool in queue.ration.pools.values()]
        assert used == [0, 0, 0]


async def test_when_redis_dies_each_goes_on_alone_and_they_come_back_by_themselves(redis: Server) -> None:
    async with hosts(redis.url) as all_hosts:
        await until(lambda: all_hosts.modes == {Mode.FREE})
        tasks = [asyncio.ensure_future(all_hosts.ask(n)) for n in range(200)]
        await until(lambda: Mode.CONTENDED in all_hosts.modes)
        redis.stop()
        await asyncio.gather(*tasks)
        await until(lambda: all_hosts.modes == {Mode.ALONE})
        redis.start()
        await until(lambda: all_hosts.modes == {Mode.FREE})
        await asyncio.gather(*(all_hosts.ask(n) for n in range(100)))
        assert [store.num_losses for store in all_hosts.stores] == [1, 1, 1]


async def test_what_fits_no_replica_gives_its_place_back_and_is_served_when_it_fits(redis: Server) -> None:
    async with hosts(redis.url, number=1) as all_hosts:
        await until(lambda: all_hosts.modes == {Mode.FREE})
        all_hosts.engines.is_full = True
        waiting = asyncio.ensure_future(all_hosts.ask(0))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        all_hosts.engines.is_full = False
        await waiting


async def test_a_pool_that_nobody_asks_for_is_left_alone_until_somebody_does(
    redis: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IDLE_S", 0.1)
    async with hosts(redis.url, number=2) as both:
        pools = [pool for queue in both.queues if queue.ration for pool in queue.ration.pools.values()]
        await until(lambda: all(pool.turns.is_idle for pool in pools))
        await until(lambda: all(pool.turns.held == 0 for pool in pools))
        turns = [both.num_turns()]
        while len(turns) < 10 and turns[-2:].count(turns[-1]) < 2:  # the last turns may be under way
            await asyncio.sleep(0.2)
            turns.append(both.num_turns())
        assert turns[-1] == turns[-2], "nobody asks Redis for it"
        await asyncio.gather(*(both.ask(n) for n in range(40)))
        assert 1 < both.engines.most <= CAPACITY


async def test_a_router_that_leaves_gives_its_places_back_at_once(redis: Server) -> None:
    async with hosts(redis.url) as all_hosts:
        await until(lambda: all_hosts.modes == {Mode.FREE})
        assert len(redis.client.hkeys("pm:{pool/m}:routers")) == 3
    assert redis.client.exists("pm:{pool/m}:routers") == 0


async def test_a_replica_promoted_by_hand_is_gone_on_with(redis: Server) -> None:
    """Its address moves with it, as a service name does: nobody is lost, and no place counted twice for long."""
    with server(redis.version, port=free_ports(1)[0]) as replica:
        redis.restart(port=free_ports(1)[0])
        replica.command("REPLICAOF", "127.0.0.1", redis.port)
        await until(lambda: replica.client.info("replication")["master_link_status"] == "up")
        async with moving_address(redis.socket) as address, hosts(f"unix://{address.path}") as all_hosts:
            await until(lambda: all_hosts.modes == {Mode.FREE})
            tasks = [asyncio.ensure_future(all_hosts.ask(n)) for n in range(200)]
            await until(lambda: Mode.CONTENDED in all_hosts.modes)
            await until(lambda: replica.client.exists("pm:{pool/m}:routers"))
            redis.stop()
            await asyncio.to_thread(replica.command, "REPLICAOF", "NO", "ONE")
            address.move(replica.socket)
            await asyncio.gather(*tasks)
            await until(lambda: all_hosts.modes == {Mode.FREE})
            all_hosts.engines.most = 0
            await asyncio.gather(*(all_hosts.ask(n) for n in range(100)))
            assert 1 < all_hosts.engines.most <= CAPACITY


async def test_routers_share_a_cluster_of_three() -> None:
    with cluster("8.2") as (url, _):
        async with hosts(url) as all_hosts:
            await until(lambda: all_hosts.modes == {Mode.FREE})
            await asyncio.gather(*(all_hosts.ask(n) for n in range(100)))
            assert 1 < all_hosts.engines.most <= CAPACITY
