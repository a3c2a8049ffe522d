"""Serves an aiohttp app on loopback while a block runs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from loadtest.peers.process import free_port


@asynccontextmanager
async def served(app: web.Application) -> AsyncIterator[str]:
    """The app's URL."""
    runner = web.AppRunner(app, shutdown_timeout=0.01, handler_cancellation=True, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{site.port}"
    finally:
        await runner.cleanup()


def nobody() -> str:
    """A URL at which nobody listens."""
    return f"http://127.0.0.1:{free_port()}"
