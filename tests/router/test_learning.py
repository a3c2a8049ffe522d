"""Speeds shared by two routers of one store, and what an operator sees of it."""

import asyncio
from collections.abc import Callable

from router.learning import Learning
from router.prefix.index import BlockIndex
from router.prefix.knowledge import Knowledge
from router.replicas.member import Member
from router.replicas.registry import Registry
from router.spec import ReplicaSpec
from router.store.connection import Store
from tests.router.replicas.fakes import Listener, make_identity, make_registry
from tests.router.replicas.test_lessons import SLOW, see
from tests.router.store.servers import server


def registry_of_one() -> tuple[Registry, Member]:
    registry = make_registry(Listener())
    registry.reconcile([ReplicaSpec("http://a.example:1")])
    (member,) = registry.members()
    member.identify(make_identity("m"), 0.0)
    return registry, member


def learning(registry: Registry, store: Store | None) -> Learning:
    return Learning(registry, Knowledge(BlockIndex(2**20), lambda _: True), None, store)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_what_one_router_learns_another_of_the_same_store_begins_with() -> None:
    (one, teller), (other, taker) = registry_of_one(), registry_of_one()
    see(teller, SLOW, 40)
    with server("6.2") as redis:
        store = Store(redis.url, timeout_s=20.0)
        async with store.opened(), asyncio.TaskGroup() as group:
            rooms = [learning(registry, store) for registry in (one, other)]
            tasks = [group.create_task(room.run()) for room in rooms]
            await until(lambda: taker.speeds.source == "sibling")
            for task in tasks:
                task.cancel()
    assert taker.replica.step == teller.replica.step
    assert rooms[1].shown() == {"a.example:1": {"speed_source": "sibling", "speed_samples": 0}}
    assert rooms[0].sources() == [(("a.example:1", "own"), 1.0)]


async def test_alone_it_only_shows_what_was_learned() -> None:
    registry, member = registry_of_one()
    room = learning(registry, None)
    task = asyncio.create_task(room.run())
    await asyncio.sleep(0)
    task.cancel()
    see(member, SLOW, 3)
    assert room.shown() == {"a.example:1": {"speed_source": "own", "speed_samples": 2}}
