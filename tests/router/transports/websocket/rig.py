"""A data port on loopback with WebSockets, over a real station whose replicas are in memory, and real clients."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from websockets.asyncio.client import ClientConnection, connect

from router.core import Headers
from router.errors import Unauthorized
from router.transports import http
from router.transports.responses.desk import ResponseDesk
from router.transports.responses.here import AnyArchive, ArchiveHere
from router.transports.websocket.chat import ChatLimits
from router.transports.websocket.socket import SocketLimits
from router.transports.websocket.sockets import CHAT_PATH, Sockets
from tests.fakes import FakeExchange, FakeUpstream, Station, specs_of
from tests.router.jobs.rig import patiently
from tests.router.transports.dialects.rig import new_desk


@dataclass(eq=False)
class Rig:
    station: Station
    upstream: FakeUpstream
    sockets: Sockets
    desk: ResponseDesk
    port: int
    clients: list["Client"] = field(default_factory=list)

    async def connect(self, path: str = CHAT_PATH, **options: Any) -> "Client":
        self.clients.append(Client(await connect(f"ws://127.0.0.1:{self.port}{path}", **options)))
        return self.clients[-1]

    async def exchange(self, number: int = 0) -> FakeExchange:
        """The attempt of that number, once a replica has it."""
        await patiently(lambda: len(self.upstream.exchanges) > number)
        return self.upstream.exchanges[number]

    async def until_idle(self) -> None:
        await patiently(lambda: not self.station.left_over)


@dataclass(eq=False)
class Client:
    wire: ClientConnection

    async def say(self, type: str, **fields: object) -> None:
        await self.wire.send(json.dumps({"type": type, **fields}))

    async def ask(self, id: str, text: str = "hi", **fields: object) -> None:
        body = {"model": "m", "messages": [{"role": "user", "content": text}], **fields}
        await self.say("request.create", id=id, body=body)

    async def hear(self) -> dict[str, Any]:
        async with asyncio.timeout(10):
            heard: dict[str, Any] = json.loads(await self.wire.recv())
        return heard

    async def hear_type(self, type: str) -> dict[str, Any]:
        """The next message, which must be of that type."""
        heard = await self.hear()
        assert heard["type"] == type, heard
        return heard


@asynccontextmanager
async def open_rig(
    limits: SocketLimits | None = None,
    chat: ChatLimits | None = None,
    origins: tuple[str, ...] = (),
    archive: AnyArchive | None = None,
    key: str | None = None,
    **settings: object,
) -> AsyncIterator[Rig]:
    """Ends with every count at zero. With `key`, responses are made for those who show it alone."""
    upstream = FakeUpstream(has_idle=True)
    station = Station(upstream, specs_of("ab"), **settings)  # type: ignore[arg-type]
    desk = new_desk(station, archive or ArchiveHere(station.clock))
    if key is not None:
        desk.owner_of = lambda headers: _tenant_of(headers, key)
    runner = web.AppRunner(web.Application())
    await runner.setup()
    assert runner.server is not None
    port = http.DataPort(station.proxy.begin, runner.server, lambda _: None, station.clock, http.PortLimits())
    port.sockets = sockets = Sockets(
        station.proxy.begin,
        desk,
        station.clock,
        limits or SocketLimits(),
        chat or ChatLimits(),
        origins,
    )
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: http.ClientConnection(port), "127.0.0.1", 0)
    rig = Rig(station, upstream, sockets, desk, server.sockets[0].getsockname()[1])
    try:
        yield rig
    finally:
        server.close()
        sockets.close()
        for client in rig.clients:
            client.wire.transport.abort()
            await client.wire.wait_closed()
        await port.close()
        await desk.runs.close()
        await rig.until_idle()
        await patiently(lambda: not sockets.open)
        await runner.cleanup()


def _tenant_of(headers: Headers, key: str) -> str:
    if dict(headers).get("authorization") != f"Bearer {key}":
        raise Unauthorized("No API key was given.")
    return "tenant"
