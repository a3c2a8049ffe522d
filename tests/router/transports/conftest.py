"""An open data port on loopback, with a service that answers as a test says, on each kind of event loop."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack

import pytest
import uvloop
from aiohttp import web

from tests.router.transports.port import OpenPort

Factory = Callable[[], asyncio.AbstractEventLoop]
OpenPorts = Callable[..., Awaitable[OpenPort]]


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, Factory]:
    """The router runs on uvloop, whose transports differ from asyncio's in detail."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
async def open_port() -> AsyncIterator[OpenPorts]:
    """`open_port(app, **limits)`. No error may go uncaught while a port is open."""
    broken: list[Mapping[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: broken.append(context))

    async with AsyncExitStack() as stack:

        async def opened(app: web.Application | None = None, **limits: float) -> OpenPort:
            return await stack.enter_async_context(OpenPort(app or web.Application(), limits).serving())

        yield opened
    assert not broken
