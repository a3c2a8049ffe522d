"""A data port on loopback whose service, clock and other routes belong to the test, and clients on bare sockets."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from aiohttp import web

from router.core import Headers, Outcome, Request
from router.errand import Errand
from router.transports.http import ClientConnection, DataPort, PortLimits
from router.transports.reply import HttpReply
from tests.contracts.adapters import HttpClient
from tests.fakes import until
from tests.router.nouns import FakeClock

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def post(path: str = "/v1/chat/completions", body: object = CHAT, *lines: str, version: str = "1.1") -> bytes:
    """A request with a length. `body` may be bytes as they are."""
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [f"POST {path} HTTP/{version}", "host: a", f"content-length: {len(payload)}", *lines, "", ""]
    return "\r\n".join(head).encode() + payload


def get(path: str, *lines: str, method: str = "GET", version: str = "1.1") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/{version}", "host: a", *lines, "", ""]).encode()


class StubbornClient(HttpClient):
    """One that stays when the other side says that it will send no more."""

    def eof_received(self) -> bool:
        return True


class RawClient(HttpClient):
    """One that parses nothing."""

    def data_received(self, data: bytes) -> None:
        self.raw += data


class Call:
    """One request as the service has it: a Flow that notes what it hears, and the words to answer with."""

    def __init__(self, request: Request, reply: HttpReply) -> None:
        self.request = request
        self.heard: list[str] = []
        self.finished = asyncio.Event()
        self._reply = reply
        reply.bind(self)

    def pause(self) -> None:
        self.heard.append("pause")

    def resume(self) -> None:
        self.heard.append("resume")

    def gone(self) -> None:
        self.heard.append("gone")
        self.finished.set()

    def head(self, status: int = 200, headers: Headers = ()) -> None:
        self._reply.head(status, headers)

    def write(self, payload: bytes) -> None:
        self._reply.write(payload)

    def end(self) -> None:
        self._reply.end(Outcome.OK, is_complete=True)
        self.finished.set()

    def answer(self, payload: bytes) -> None:
        self.head()
        self.write(payload)
        self.end()


class OpenPort:
    """The port, what came to it, and its clients."""

    def __init__(self, app: web.Application, limits: Mapping[str, float]) -> None:
        self.clock = FakeClock()
        self.calls: list[Call] = []
        self.refused: list[int] = []
        self.num_cancelled = 0
        self.num_received = 0
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        self._limits = PortLimits(**limits)  # type: ignore[arg-type]
        self._clients: list[HttpClient] = []

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["OpenPort"]:
        await self._runner.setup()
        assert self._runner.server is not None
        self.port = DataPort(self._begin, self._runner.server, self.refused.append, self.clock, self._limits)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _CountedConnection(self), "127.0.0.1", 0)
        self._address = server.sockets[0].getsockname()
        try:
            yield self
        finally:
            server.close()
            for client in self._clients:
                client.leave()
            await self.port.close()
            await until(lambda: not self.port.connections and all(client.is_closed for client in self._clients))
            await self._runner.cleanup()

    async def connect(self, kind: type[HttpClient] = HttpClient) -> HttpClient:
        _, client = await asyncio.get_running_loop().create_connection(kind, *self._address)
        self._clients.append(client)
        return client

    async def call(self, number: int = 0) -> Call:
        await until(lambda: len(self.calls) > number)
        return self.calls[number]

    def later(self, seconds: float) -> None:
        """Time passes, and the port looks at its connections."""
        self.clock.now += seconds
        self.port.sweep()

    async def send(self, client: HttpClient, data: bytes) -> None:
        """Send, and wait until the port has read it all."""
        wanted = self.num_received + len(data)
        client.send(data)
        await until(lambda: self.num_received == wanted)

    def _begin(self, request: Request, reply: HttpReply) -> Errand:
        return Errand(self._handle(request, reply)).step()

    async def _handle(self, request: Request, reply: HttpReply) -> None:
        call = Call(request, reply)
        self.calls.append(call)
        try:
            await call.finished.wait()
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise


class _CountedConnection(ClientConnection):
    def __init__(self, port: OpenPort) -> None:
        super().__init__(port.port)
        self._open_port = port

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._open_port.num_received += len(data)
