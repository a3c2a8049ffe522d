"""A replica on loopback that answers each request byte by byte as a test tells it, well or badly. Knows HTTP/1.1 and
SSE; knows nothing of the router.
"""

import asyncio
import json
import socket
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import httptools

from loadtest.peers.process import free_port
from router.spec import ReplicaSpec
from tests.fakes import until

Behaviour = Callable[["Call"], None]
DONE = b"data: [DONE]\n\n"
# The kernel's own buffers would hide for megabytes that nobody reads.
SMALL_BUFFER_BYTES = 16 * 1024


class Call:
    """One request as the replica has it, and the connection to answer on. Whatever a test calls happens at once."""

    def __init__(self, wire: "_Wire", path: str, headers: list[tuple[str, str]], body: bytes) -> None:
        self.path = path
        self.headers = dict(headers)
        self.header_names = [name for name, _ in headers]
        self.body = body
        self._wire = wire

    @property
    def replica_id(self) -> str:
        return self._wire.replica.id

    @property
    def is_dropped(self) -> bool:
        """Has the router let go of this connection?"""
        return self._wire.is_lost

    @property
    def num_unsent(self) -> int:
        """Bytes that the router does not take."""
        return self._wire.transport.get_write_buffer_size()

    def raw(self, data: bytes) -> None:
        self._wire.transport.write(data)

    def head(self, status: int = 200, *headers: tuple[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} Whatever", *(f"{name}: {value}" for name, value in headers)]
        self.raw("\r\n".join([*lines, "", ""]).encode())

    def json(self, body: object, status: int = 200, *headers: tuple[str, str]) -> None:
        """A whole answer; bytes go out as they are."""
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        length = ("Content-Length", str(len(payload)))
        self.head(status, ("Content-Type", "application/json"), length, *headers)
        self.raw(payload)

    def whole(self, num_bytes: int) -> None:
        """The head of a JSON answer of that length; `part` sends some of it."""
        self.head(200, ("Content-Type", "application/json"), ("Content-Length", str(num_bytes)))

    def part(self, payload: bytes) -> None:
        self.raw(payload)

    def stream(self) -> None:
        """The head of an SSE answer in chunks."""
        self.head(200, ("Content-Type", "text/event-stream; charset=utf-8"), ("Transfer-Encoding", "chunked"))

    def send(self, payload: bytes) -> None:
        """One chunk."""
        self.raw(b"%x\r\n%b\r\n" % (len(payload), payload))

    def end(self) -> None:
        """The last chunk."""
        self.raw(b"0\r\n\r\n")

    def close(self) -> None:
        self._wire.transport.close()

    def reset(self) -> None:
        """Break the connection, so that its peer gets an error and not an end."""
        sock = self._wire.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._wire.transport.abort()


class Script:
    """What happens on the replicas of one test: each request becomes a `Call`, in the order in which they come,
    answered by the next of `queue`, then by `otherwise`, else by the test itself."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.queue: deque[Behaviour] = deque()
        self.otherwise: Behaviour | None = None

    async def call(self, number: int = 0) -> Call:
        """The request of that number, once it is here."""
        await until(lambda: len(self.calls) > number)
        return self.calls[number]

    def came(self, call: Call) -> None:
        self.calls.append(call)
        behaviour = self.queue.popleft() if self.queue else self.otherwise
        if behaviour is not None:
            behaviour(call)


class HostileReplica:
    """One replica that listens. `num_accepted` connections came in all; `wires` are open. A deaf one reads nothing."""

    def __init__(self, script: Script, port: int) -> None:
        self.script = script
        self.num_accepted = 0
        self.is_deaf = False
        self.wires: set[_Wire] = set()
        self.spec = ReplicaSpec(f"http://127.0.0.1:{port}")
        self.server: asyncio.Server | None = None

    def stop_listening(self) -> None:
        """From now on connections are refused."""
        assert self.server is not None
        self.server.close()

    @property
    def id(self) -> str:
        return self.spec.id


class _Wire(asyncio.Protocol):
    """One connection of the router's."""

    def __init__(self, replica: HostileReplica) -> None:
        self.is_lost = False
        self.replica = replica
        self._parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.replica.num_accepted += 1
        self.replica.wires.add(self)

    def data_received(self, data: bytes) -> None:
        if not self.replica.is_deaf:
            self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self.replica.wires.discard(self)

    def on_message_begin(self) -> None:
        self._path, self._body = b"", b""
        self._headers: list[tuple[str, str]] = []

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.decode().lower(), value.decode()))

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self.replica.script.came(Call(self, self._path.decode(), self._headers, self._body))


@asynccontextmanager
async def hostile_replica(script: Script, port: int = 0) -> AsyncIterator[HostileReplica]:
    """A replica that listens, until the block is left."""
    sock = socket.create_server(("127.0.0.1", port))
    replica = HostileReplica(script, sock.getsockname()[1])
    replica.server = await asyncio.get_running_loop().create_server(lambda: _Wire(replica), sock=sock)
    try:
        yield replica
    finally:
        replica.stop_listening()
        for wire in list(replica.wires):
            wire.transport.abort()
        await until(lambda: not replica.wires)


def absent_replica() -> ReplicaSpec:
    """A replica on a port of loopback on which nobody listens."""
    return ReplicaSpec(f"http://127.0.0.1:{free_port()}")


def event(text: str) -> bytes:
    """One content chunk as an SSE event."""
    chunk = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": text}}]}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


# Behaviours for scripts.


def answers(body: object, status: int = 200, *headers: tuple[str, str]) -> Behaviour:
    return lambda call: call.json(body, status, *headers)


def streams(*payloads: bytes) -> Behaviour:
    """A whole SSE answer, one chunk a payload."""

    def behave(call: Call) -> None:
        call.stream()
        for payload in payloads:
            call.send(payload)
        call.end()

    return behave


def closes(call: Call) -> None:
    """Read the request and close without a byte."""
    call.close()


def resets(call: Call) -> None:
    call.reset()


def says(data: bytes, *, then_closes: bool = False) -> Behaviour:
    """Any bytes at all."""

    def behave(call: Call) -> None:
        call.raw(data)
        if then_closes:
            call.close()

    return behave
