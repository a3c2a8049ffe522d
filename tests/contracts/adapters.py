"""Every transport that the contracts hold for. A new one adds a class with the methods of `HttpReplies` or
`HttpUpstreams` to one of the two lists below, and a client or a replica that it speaks to; the cases stay as they are.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import httptools
import pytest
from aiohttp import web

from router.spec import ReplicaSpec
from router.transports.http import ClientConnection, DataPort, PortLimits
from router.transports.web import Views, data_routes
from router.upstream.grpc.pool import GrpcUpstream
from router.upstream.handover import HandoverUpstream
from router.upstream.http import HttpUpstream
from router.upstream.merging import MergingUpstream
from tests.contracts.answers import Answer
from tests.contracts.hostile import SMALL_BUFFER_BYTES, HostileReplica, Script, hostile_replica
from tests.contracts.hostile_grpc import GrpcReplica, Verbatim, hostile_grpc_replica
from tests.contracts.over_grpc import GrpcReplies
from tests.contracts.over_websocket import SocketReplies
from tests.fakes import Station, until
from tests.router.nouns import FakeClock


class HttpClient(asyncio.Protocol):
    """A client on a bare socket: its bytes go out as they are, its answers are parsed and their raw bytes kept."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.raw = bytearray()
        self.is_closed = False
        self._begin()

    # what every client can do

    def ask(self, *headers: tuple[str, str], **fields: object) -> None:
        """A chat request."""
        self.ask_with(chat_body(**fields), *headers)

    def ask_with(self, body: bytes, *headers: tuple[str, str]) -> None:
        self.send(chat_request(body, *headers))

    async def answer(self, number: int = 0) -> Answer:
        """The answer of that number, once it is at its end, however it ends."""
        await until(lambda: self._has_ended(number))
        assert len(self.answers) > number, "the connection closed without an answer"
        return self.answers[number]

    async def head(self, number: int = 0) -> Answer:
        """The answer of that number, once its head is here."""
        await until(lambda: len(self.answers) > number or self.is_closed)
        return self.answers[number]

    async def read_until(self, text: bytes, number: int = 0) -> bytes:
        """The payload so far, once it has this in it."""
        answer = await self.head(number)
        await until(lambda: text in answer.body or answer.is_complete or self.is_closed)
        assert text in answer.body
        return answer.payload

    def stop_reading(self) -> None:
        self.transport.pause_reading()

    def read_on(self) -> None:
        self.transport.resume_reading()

    def leave(self) -> None:
        self.transport.abort()

    # what is HTTP's own

    def send(self, data: bytes) -> None:
        self.transport.write(data)

    def _has_ended(self, number: int) -> bool:
        return self.is_closed or (len(self.answers) > number and self.answers[number].is_complete)

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._is_head_seen = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.raw += data
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        if self.answers and not self.answers[-1].is_complete:
            answer = self.answers[-1]
            is_framed = "content-length" in answer.headers or "transfer-encoding" in answer.headers
            answer.is_complete, answer.is_cut = not is_framed, is_framed

    def on_message_begin(self) -> None:
        self._headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode().lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:
            self.answers.append(Answer(status, self._headers))

    def on_body(self, payload: bytes) -> None:
        self.answers[-1].body += payload

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() >= 200:
            self.answers[-1].is_complete = True


@dataclass(eq=False)
class HttpReplies:
    """`ports.Reply` over HTTP/1.1: the real data port on loopback. `on_loss` is called right after the connection has
    heard that its client is gone, in the same turn of the loop."""

    station: Station
    limits: PortLimits = field(default_factory=PortLimits)
    on_loss: Callable[[], None] = lambda: None
    clients: list[HttpClient] = field(default_factory=list)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["HttpReplies"]:
        runner = web.AppRunner(data_routes(_views(self.station)), handler_cancellation=True, access_log=None)
        await runner.setup()
        assert runner.server is not None
        self.refused: list[int] = []
        self.port = DataPort(
            self.station.proxy.begin, runner.server, self.refused.append, self.station.clock, self.limits
        )
        sock = socket.create_server(("127.0.0.1", 0))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER_BYTES)
        self.address = sock.getsockname()
        server = await asyncio.get_running_loop().create_server(lambda: _WatchedConnection(self), sock=sock)
        try:
            yield self
        finally:
            server.close()
            for client in self.clients:
                client.leave()
            await self.port.close()
            await until(lambda: not self.port.connections and all(client.is_closed for client in self.clients))
            await runner.cleanup()

    async def connect(self) -> HttpClient:
        loop = asyncio.get_running_loop()
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
        sock.setblocking(False)
        await loop.sock_connect(sock, self.address)
        _, client = await loop.create_connection(HttpClient, sock=sock)
        self.clients.append(client)
        return client

    @property
    def num_unsent(self) -> int:
        """Bytes that wait in this process for clients that do not read."""
        return sum(connection._transport.get_write_buffer_size() for connection in self.port.connections)


class _WatchedConnection(ClientConnection):
    def __init__(self, replies: HttpReplies) -> None:
        super().__init__(replies.port)
        self._replies = replies

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._replies.on_loss()


class HttpUpstreams:
    """`ports.Upstream` over HTTP/1.1, and replicas that it can speak to."""

    content_type = "application/json"

    def __init__(self, clock: FakeClock) -> None:
        self.upstream = HttpUpstream(clock)

    def replica(self, script: Script) -> AbstractAsyncContextManager[HostileReplica]:
        return hostile_replica(script)

    @asynccontextmanager
    async def deaf_replica(self, script: Script) -> AsyncIterator[HostileReplica]:
        """One to which connecting begins and never ends: it is silent in the TLS handshake."""
        async with hostile_replica(script) as replica:
            replica.is_deaf, replica.spec = True, ReplicaSpec(replica.spec.url.replace("http:", "https:"))
            yield replica

    @property
    def num_busy(self) -> int:
        """Connections that carry an attempt and are not closing."""
        return sum(each._exchange is not None and each.is_usable for each in self.upstream._open)


class MergingUpstreams:
    """Micro-batching around HTTP, for what cannot be merged."""

    content_type = HttpUpstreams.content_type

    def __init__(self, clock: FakeClock) -> None:
        self.inner = HttpUpstreams(clock)
        self.upstream = MergingUpstream(self.inner.upstream)

    def replica(self, script: Script) -> AbstractAsyncContextManager[HostileReplica]:
        return self.inner.replica(script)

    def deaf_replica(self, script: Script) -> AbstractAsyncContextManager[HostileReplica]:
        return self.inner.deaf_replica(script)

    @property
    def num_busy(self) -> int:
        return self.inner.num_busy


class HandoverUpstreams(MergingUpstreams):
    """Pairs of replicas around HTTP, for what one replica does alone."""

    def __init__(self, clock: FakeClock) -> None:
        self.inner = HttpUpstreams(clock)
        self.upstream = cast(Any, HandoverUpstream(self.inner.upstream, lambda *_: None))


class GrpcUpstreams:
    """`ports.Upstream` over gRPC, and replicas that it can speak to: here a message is the payload itself."""

    content_type = "application/grpc"

    def __init__(self, clock: FakeClock) -> None:
        self.upstream = GrpcUpstream(clock, cast(Any, Verbatim()))

    def replica(self, script: Script) -> AbstractAsyncContextManager[GrpcReplica]:
        return hostile_grpc_replica(script)

    @asynccontextmanager
    async def deaf_replica(self, script: Script) -> AsyncIterator[GrpcReplica]:
        """One to which connecting begins and never ends: it does not say its settings."""
        async with hostile_grpc_replica(script) as replica:
            replica.is_deaf = True
            yield replica

    @property
    def num_busy(self) -> int:
        return self.upstream.num_calls


REPLIES: Mapping[str, Callable[..., HttpReplies]] = {
    "http": HttpReplies,
    # Their clients have the same words.
    "grpc": cast(Any, GrpcReplies),
    "websocket": cast(Any, SocketReplies),
}
UPSTREAMS: Mapping[str, Callable[[FakeClock], HttpUpstreams]] = {
    "http": HttpUpstreams,
    "grpc": cast(Any, GrpcUpstreams),  # its replicas and calls have the same words
}
# For cases that go by the bytes of a replica's HTTP answers, or by a whole answer that comes in pieces.
over_http = pytest.mark.over_http
# For cases of streams that go by what is said, not by HTTP's bytes: they hold for every reply.
every_reply = pytest.mark.every_reply
# What stands around another owes its sink the same; the rest of the cases would try the inner one twice.
AROUND: Mapping[str, Callable[[FakeClock], HttpUpstreams]] = {
    "merging": cast(Any, MergingUpstreams),
    "handover": cast(Any, HandoverUpstreams),
}


def chat_body(**fields: object) -> bytes:
    content = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    return json.dumps(content, ensure_ascii=False).encode()


def chat_request(body: bytes, *headers: tuple[str, str], version: str = "1.1") -> bytes:
    """An HTTP request with a length."""
    fields = [("Host", "router"), ("Content-Type", "application/json"), ("Content-Length", str(len(body))), *headers]
    lines = [f"POST /v1/chat/completions HTTP/{version}", *(f"{name}: {value}" for name, value in fields)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def _views(station: Station) -> Views:
    return Views(
        version="0",
        models=station.registry.models,
        live=dict,
        ready=lambda: (True, {}),
        replicas=list,
        set_draining=lambda *_: None,
        metrics=station.metrics.render,
    )
