"""Replicas that sleep get no requests, and are woken when they are wanted."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import pytest
from aiohttp import web

from router.core import ReplicaState
from router.replicas.discovery.static import StaticDiscovery
from router.replicas.fetch import open_session
from router.replicas.registry import Registry
from router.replicas.waking import Waker, is_asleep
from router.spec import ReplicaSpec
from tests.router.nouns import FakeClock, make_replica
from tests.router.served import nobody, served


class Sleeper:
    """A replica of model `m` that sleeps until it is told to wake up; `says` is its word on it, None for no route."""

    def __init__(self, says: object = ...) -> None:
        self.is_asleep, self.num_told, self._says = True, 0, says

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/wake_up", self._wake)
        if self._says is not None:
            app.router.add_get("/is_sleeping", self._sleep)
        return app

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m"}]})

    async def _sleep(self, _: web.Request) -> web.Response:
        return web.json_response({"is_sleeping": self.is_asleep} if self._says is ... else self._says)

    async def _wake(self, _: web.Request) -> web.Response:
        self.num_told += 1
        self.is_asleep = False
        return web.Response()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10.0):
        while not condition():  # noqa: ASYNC110  (a replica on a socket is waited for)
            await asyncio.sleep(0.005)


async def test_a_replica_that_sleeps_gets_nothing_until_it_is_woken() -> None:
    sleeper = Sleeper()
    async with served(sleeper.app()) as url:
        registry = Registry(
            StaticDiscovery([ReplicaSpec(url)]),
            on_change=lambda: None,
            on_lost=lambda _: None,
            on_identified=lambda *_: None,
            probe_interval_s=60.0,
        )
        running = asyncio.ensure_future(registry.run())
        waker = Waker(registry.clock, registry.woken)
        try:
            await until(lambda: [replica.state for replica in registry.replicas()] == [ReplicaState.ASLEEP])
            pool, _ = registry.resolve("m")
            assert not registry.available(pool, registry.clock())
            assert not registry.has_ready(pool, frozenset())
            for _ in range(3):
                waker.wake_one(registry.replicas())
            await until(lambda: registry.has_ready(pool, frozenset()))
            assert sleeper.num_told == 1, "it is told once"
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await waker.close()


@pytest.mark.parametrize(
    ("says", "found"),
    [(None, None), ({"is_sleeping": True}, True), ({"is_sleeping": False}, False), ([1], False), ({"x": 1}, False)],
)
async def test_what_a_replica_says_of_its_sleep(says: object, found: bool | None) -> None:
    async with served(Sleeper(says).app()) as url, open_session() as session:
        assert await is_asleep(session, ReplicaSpec(url), 5.0) is found


async def test_one_that_cannot_be_woken_is_told_again_after_a_pause_and_others_before_it() -> None:
    clock, woken = FakeClock(), list[str]()
    waker = Waker(clock, woken.append)
    replicas = [make_replica(nobody().removeprefix("http://"), state=ReplicaState.ASLEEP) for _ in range(2)]
    for number in range(3):
        waker.wake_one(replicas)
        waker.wake_one(replicas)
        await until(partial(_has, woken, number + 1))
        clock.now += 6.0
    assert woken == [replicas[0].id, replicas[1].id, replicas[0].id]
    await waker.close()


def _has(found: Sequence[str], count: int) -> bool:
    return len(found) == count


def test_nobody_is_woken_where_nobody_sleeps() -> None:
    Waker(FakeClock(), lambda _: None).wake_one([make_replica("a")])
