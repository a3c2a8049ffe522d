from collections.abc import AsyncIterator

import pytest

from loadtest.client import Client, connect
from tests.loadtest.fake_server import FakeServer, serving


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    async with serving(FakeServer()) as running:
        yield running


@pytest.fixture
async def client(server: FakeServer) -> AsyncIterator[Client]:
    async with connect(server.url, None, timeout_s=30) as connected:
        yield connected
