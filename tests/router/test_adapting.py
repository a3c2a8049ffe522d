"""How the parts that bring adapters to replicas are put together in a process."""

import asyncio
import time
from pathlib import Path

import pytest

from router.adapting import Adapters
from router.admission.bookfile import BookFile
from router.commons import Commons
from router.config import Settings
from router.replicas.registry import Registry
from router.replicas.wanted import Adapter
from router.spec import ReplicaSpec
from router.store import names
from router.store.bookinredis import BookInRedis
from router.workers.board import Board
from router.workers.desk import Desk
from router.workers.sharing import Sharing
from tests.router.replicas.fakes import Fleet, Listener, make_identity, make_registry


def adapters(folder: Path, redis: str = "none", sharing: Sharing | None = None) -> tuple[Adapters, Registry]:
    settings = Settings(redis=redis, state_dir=str(folder), port=31234)
    registry = make_registry(Listener(), Fleet())
    return Adapters(Commons(settings), registry, sharing), registry


def serve(registry: Registry, *names: str) -> None:
    """Replicas of `base` that are ready."""
    registry.reconcile([ReplicaSpec(f"http://{name}") for name in names])
    for member in registry.members():
        registry._identified(member, make_identity("base"), None)
        registry._good(member)


def test_what_is_wanted_lies_in_a_file_of_this_host_or_in_the_redis_that_hosts_share(tmp_path: Path) -> None:
    alone, _ = adapters(tmp_path)
    assert alone.rollout.book.store == BookFile(tmp_path / "adapters-31234.json")
    shared, _ = adapters(tmp_path, "redis://127.0.0.1:1/0")
    store = shared.rollout.book.store
    assert isinstance(store, BookInRedis)
    assert store.key == names.ADAPTERS


def test_of_several_processes_one_looks_after_the_replicas(tmp_path: Path) -> None:
    board = Board.create(4)
    try:
        for row in (1, 3):
            board.raise_row(row)
        one, other = (adapters(tmp_path, sharing=Sharing(Desk(board, row), row, "", []))[0] for row in (1, 3))
        assert (one.rollout.leads(), other.rollout.leads()) == (True, False)
        board.bury_row(1)
        assert other.rollout.leads()
    finally:
        board.close()


async def test_a_name_that_nobody_wants_is_not_waited_for(tmp_path: Path) -> None:
    alone, _ = adapters(tmp_path)
    async with asyncio.timeout(30):
        await alone.until_listed("red", time.monotonic() + 3600.0)


async def test_a_name_that_is_wanted_is_waited_for_until_a_replica_lists_it(tmp_path: Path) -> None:
    alone, registry = adapters(tmp_path)
    serve(registry, "a")
    await alone.rollout.book.want(Adapter("red", "/red", "base"))
    waiting = asyncio.create_task(alone.until_listed("red", time.monotonic() + 3600.0))
    (member,) = registry.members()
    registry._identified(member, make_identity("base", adapters=["red"]), None)
    async with asyncio.timeout(30):
        await waiting


async def test_a_wait_for_a_name_has_an_end(tmp_path: Path) -> None:
    alone, registry = adapters(tmp_path)
    serve(registry, "a")
    await alone.rollout.book.want(Adapter("red", "/red", "base"))
    async with asyncio.timeout(30):
        await alone.until_listed("red", time.monotonic() + 0.01)


async def test_where_adapters_stand_is_counted_and_shown(tmp_path: Path) -> None:
    alone, registry = adapters(tmp_path)
    assert alone.counts() == []
    serve(registry, "a", "b")
    await alone.rollout.book.want(Adapter("red", "/red", "base"))
    registry._identified(registry.members()[0], make_identity("base", adapters=["red"]), None)
    assert alone.shown("a") == {"red": {"state": "loaded", "reason": ""}}
    assert alone.shown("b") == {"red": {"state": "waiting", "reason": ""}}
    assert alone.shown("nobody") == {}
    assert sorted(alone.counts()) == [(("a", "loaded"), 1.0), (("b", "waiting"), 1.0)]


@pytest.mark.parametrize("is_shared", [False, True])
async def test_siblings_are_waited_for_only_where_there_are_any(tmp_path: Path, is_shared: bool) -> None:
    board = Board.create(2)
    try:
        board.raise_row(0)
        sharing = Sharing(Desk(board, 0), 0, "", []) if is_shared else None
        alone, _ = adapters(tmp_path, sharing=sharing)
        async with asyncio.timeout(30):
            await alone._settled()
    finally:
        board.close()
