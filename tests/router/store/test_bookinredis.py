"""Keys in Redis, for all hosts that share it: changed at once, lost, and unreachable."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from router.admission import records
from router.admission.keyring import Keyring
from router.admission.opening import open_keyring
from router.config import Settings
from router.errors import Unauthorized
from router.store.connection import Store
from tests.router.store.servers import Server, server


@pytest.fixture(params=["6.2", "8.2"])
def redis(request: pytest.FixtureRequest) -> Iterator[Server]:
    with server(request.param) as running:
        yield running


@contextlib.asynccontextmanager
async def keyring(url: str, folder: Path, **settings: str) -> AsyncIterator[Keyring]:
    store = Store(url, timeout_s=20.0, random=lambda: 0.0)
    ring = open_keyring(Settings(redis=url, **settings), folder, store)  # type: ignore[arg-type]
    async with store.opened():
        with contextlib.suppress(Exception):
            await store.wait_up(5.0)
        yield ring


async def create(ring: Keyring, name: str) -> str:
    _, token = await ring.edit(lambda book: records.create_key(book, {"name": name}, 0.0))
    return str(token)


async def test_a_key_made_by_one_host_is_good_at_another_and_changes_at_once_lose_nothing(
    redis: Server, tmp_path: Path
) -> None:
    async with keyring(redis.url, tmp_path / "a") as one, keyring(redis.url, tmp_path / "b") as other:
        token = await create(one, "alice")
        await create(other, "bob")
        await one.refresh()
        await other.refresh()
        assert other.callers.identify(token, 1.0).tenant == "alice"
        assert len(one.callers.book.keys) == len(other.callers.book.keys) == 2
        assert await one.store.save(b"{}", "1") is None, "it has changed since"


async def test_a_store_that_has_lost_its_keys_opens_no_door_and_gets_them_back(redis: Server, tmp_path: Path) -> None:
    async with keyring(redis.url, tmp_path) as ring:
        token = await create(ring, "alice")
        await ring.refresh()
        redis.client.flushall()
        await ring.refresh()
        with pytest.raises(Unauthorized):
            ring.callers.identify(None, 1.0)
        assert ring.callers.identify(token, 1.0).tenant == "alice"
    async with keyring(redis.url, tmp_path / "another host") as fresh:
        await fresh.refresh()
        assert fresh.callers.identify(token, 1.0).tenant == "alice"


async def test_a_router_that_starts_while_redis_is_away_goes_by_the_keys_it_knew_last(
    redis: Server, tmp_path: Path
) -> None:
    async with keyring(redis.url, tmp_path) as ring:
        token = await create(ring, "alice")
    redis.stop()
    async with keyring(redis.url, tmp_path) as later:
        await later.refresh()
        assert later.callers.identify(token, 1.0).tenant == "alice"
        with pytest.raises(Unauthorized):
            later.callers.identify(None, 1.0)


async def test_a_public_router_that_knows_no_keys_yet_lets_nobody_in(redis: Server, tmp_path: Path) -> None:
    redis.stop()
    async with keyring(redis.url, tmp_path, host="0.0.0.0") as ring:
        with pytest.raises(Unauthorized):
            ring.callers.identify(None, 1.0)
