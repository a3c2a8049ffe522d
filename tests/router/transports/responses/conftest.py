"""Redis in both versions, emptied for each test."""

from collections.abc import AsyncIterator, Iterator

import pytest

from router.store.connection import Store
from router.transports.responses.archive import Archive, KeepLimits
from tests.router.store.servers import PROGRAMS, Server, server


@pytest.fixture(scope="module", params=PROGRAMS)
def redis_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with server(request.param) as running:
        yield running


@pytest.fixture
async def store(redis_server: Server) -> AsyncIterator[Store]:
    redis_server.command("FLUSHALL")
    store = Store(redis_server.url, timeout_s=5.0)
    async with store.opened():
        await store.wait_up(30.0)
        yield store


@pytest.fixture
def archive(store: Store) -> Archive:
    return Archive(store, KeepLimits())
