"""A replica on loopback that answers calls frame by frame as a test tells it, well or badly. Knows HTTP/2 and gRPC's
framing, and the same words as the replica of `hostile.py`; knows nothing of contracts: a message is the payload itself.
"""

import asyncio
import json
import socket
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import quote

from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import BadRequest, RetryInfo
from google.rpc.status_pb2 import Status as RichStatus

from router.core import Attempt, Headers
from router.spec import ReplicaSpec
from router.upstream.grpc import frames, hpack
from router.upstream.grpc.answering import Call, Plan
from router.upstream.grpc.answers import JSON, STREAM
from router.upstream.grpc.frames import Flag, Kind, Reason, Setting
from tests.contracts.hostile import Script
from tests.fakes import until

# The code that stands for each of HTTP's statuses.
CODES = {400: 3, 401: 16, 403: 7, 404: 5, 409: 6, 429: 8, 500: 13, 501: 12, 502: 2, 503: 14, 504: 4}


class GrpcCall:
    """One call as the replica has it. Whatever a test calls happens at once."""

    def __init__(self, wire: "GrpcWire", stream_id: int, headers: list[tuple[str, str]]) -> None:
        self.id = stream_id
        self.path = dict(headers)[":path"]
        self.headers = dict(headers)
        self.header_names = [name for name, _ in headers]
        self.body = b""
        self.is_reset = False
        self.window = wire.initial_window
        self.unsent = b""
        self._has_head = False
        self._trailers: bytes | None = None
        self._wire = wire

    @property
    def replica_id(self) -> str:
        return self._wire.replica.id

    @property
    def is_dropped(self) -> bool:
        """Has the router let go of this call?"""
        return self.is_reset or self._wire.is_lost

    @property
    def num_unsent(self) -> int:
        """Bytes that the router does not take."""
        return len(self.unsent) + self._wire.transport.get_write_buffer_size()

    def stream(self, *fields: tuple[str, str]) -> None:
        """The head of an answer."""
        self._has_head = True
        block = b"\x88" + hpack.field("content-type", "application/grpc")
        self._wire.frame(Kind.HEADERS, Flag.END_HEADERS, self.id, block + _block(fields))

    def send(self, payload: bytes) -> None:
        """One message."""
        self.data(b"\0" + len(payload).to_bytes(4, "big") + payload)

    def data(self, data: bytes) -> None:
        """Any bytes, as far as the windows let them."""
        self.unsent += data
        self.flush()

    def flush(self) -> None:
        while self.unsent and (room := min(self.window, self._wire.window, frames.FRAME_BYTES)) > 0:
            piece, self.unsent = self.unsent[:room], self.unsent[room:]
            self.window -= len(piece)
            self._wire.window -= len(piece)
            self._wire.frame(Kind.DATA, 0, self.id, piece)
        if self._trailers is not None and not self.unsent:
            trailers, self._trailers = self._trailers, None
            self._wire.frame(Kind.HEADERS, Flag.END_HEADERS | Flag.END_STREAM, self.id, trailers)

    def end(self, status: int = 0, *fields: tuple[str, str]) -> None:
        """The trailers; behind no head they are all there is."""
        block = b"" if self._has_head else b"\x88" + hpack.field("content-type", "application/grpc")
        self._trailers = block + hpack.field("grpc-status", str(status)) + _block(fields)
        self.flush()

    def json(self, body: object, status: int = 200, *headers: tuple[str, str]) -> None:
        """A whole answer; an error is a status, with rich details."""
        if status == 200:
            self.stream()
            self.send(body if isinstance(body, bytes) else json.dumps(body).encode())
            self.end()
            return
        error: Any = body.get("error", {}) if isinstance(body, dict) else {}
        details = RichStatus()
        if error.get("param"):
            details.details.add().Pack(BadRequest(field_violations=[{"field": error["param"]}]))
        wait = dict(headers).get("Retry-After")
        if wait is not None:
            details.details.add().Pack(RetryInfo(retry_delay=Duration(seconds=int(wait))))
        rich = b64encode(details.SerializeToString()).decode().rstrip("=")
        message = quote(str(error.get("message", "")))
        self.end(CODES.get(status, 2), ("grpc-message", message), ("grpc-status-details-bin", rich))

    def whole(self, num_bytes: int) -> None:
        """The head of an answer of that length; `part` sends some of it."""
        self.stream()

    def part(self, payload: bytes) -> None:
        self.send(payload)

    def refuse(self) -> None:
        """Say that it was not looked at."""
        self._wire.frame(Kind.RST_STREAM, 0, self.id, Reason.REFUSED_STREAM.to_bytes(4, "big"))

    def leave(self, last_id: int) -> None:
        """No more calls here, and none after `last_id` has been looked at."""
        self._wire.frame(Kind.GOAWAY, 0, 0, last_id.to_bytes(4, "big") + bytes(4))

    def close(self) -> None:
        self._wire.transport.close()

    def reset(self) -> None:
        self._wire.transport.abort()

    def frame(self, kind: int, flags: int, payload: bytes) -> None:
        """Any frame of this call."""
        self._wire.frame(kind, flags, self.id, payload)

    def raw(self, data: bytes) -> None:
        """Any bytes on its connection."""
        self._wire.transport.write(data)


def _block(fields: tuple[tuple[str, str], ...]) -> bytes:
    return b"".join(hpack.field(name, value) for name, value in fields)


class GrpcReplica:
    """One replica that listens. A deaf one reads nothing, and says nothing. `settings` are said to each connection."""

    def __init__(self, script: Script, port: int) -> None:
        self.script = script
        self.is_deaf = False
        self.settings: dict[Setting, int] = {}
        self.num_accepted = 0
        self.wires: set[GrpcWire] = set()
        self.spec = ReplicaSpec(f"grpc://127.0.0.1:{port}")
        self.server: asyncio.Server | None = None

    def stop_listening(self) -> None:
        """From now on connections are refused."""
        assert self.server is not None
        self.server.close()

    @property
    def id(self) -> str:
        return self.spec.id


class GrpcWire(asyncio.Protocol):
    """One connection of the router's."""

    def __init__(self, replica: GrpcReplica) -> None:
        self.replica = replica
        self.is_lost = False
        self.window = self.initial_window = frames.WINDOW_BYTES
        self.calls: dict[int, GrpcCall] = {}
        self.acknowledged: list[bytes] = []
        self._rest = b""

    def frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        self.transport.write(frames.frame(kind, flags, stream_id, payload))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.replica.num_accepted += 1
        self.replica.wires.add(self)
        if not self.replica.is_deaf:
            self.transport.write(frames.settings(self.replica.settings))

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self.replica.wires.discard(self)

    def data_received(self, data: bytes) -> None:
        if self.replica.is_deaf:
            return
        data = self._rest + data
        if data.startswith(b"PRI"):
            if len(data) < len(frames.PREFACE):
                self._rest = data
                return
            assert data.startswith(frames.PREFACE)
            data = data[len(frames.PREFACE) :]
        while len(data) >= 9 and len(data) >= 9 + int.from_bytes(data[:3], "big"):
            stop = 9 + int.from_bytes(data[:3], "big")
            self._take(data[3], data[4], int.from_bytes(data[5:9], "big"), data[9:stop])
            data = data[stop:]
        self._rest = data

    def _take(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        call = self.calls.get(stream_id)
        if kind == Kind.HEADERS:
            self.calls[stream_id] = GrpcCall(self, stream_id, list(hpack.fields(payload)))
        elif kind == Kind.DATA and call is not None:
            call.body += payload
            if flags & Flag.END_STREAM:
                call.body = call.body[5:]
                self.replica.script.came(cast(Any, call))
        elif kind == Kind.RST_STREAM and call is not None:
            call.is_reset = True
        elif kind == Kind.SETTINGS and not flags & Flag.ACK:
            self.frame(Kind.SETTINGS, Flag.ACK, 0, b"")
        elif kind == Kind.PING and flags & Flag.ACK:
            self.acknowledged.append(payload)
        elif kind == Kind.WINDOW_UPDATE:
            self._open_window(call, int.from_bytes(payload, "big"))

    def _open_window(self, call: GrpcCall | None, num_bytes: int) -> None:
        if call is None:
            self.window += num_bytes
        else:
            call.window += num_bytes
        for each in self.calls.values():
            each.flush()


class Verbatim:
    """Plans for such replicas: one call, of the path and the body of the attempt."""

    def now(self, attempt: Attempt) -> Plan:
        is_stream = b'"stream": true' in attempt.body or attempt.body == b"{}"
        return Plan([Call(attempt.path, attempt.body)], cast(Any, VerbatimAnswering(is_stream)))

    async def soon(self, attempt: Attempt) -> Plan:
        return self.now(attempt)


@dataclass(eq=False)
class VerbatimAnswering:
    is_stream: bool
    whole: bytes = b""

    @property
    def headers(self) -> Headers:
        return STREAM if self.is_stream else JSON

    def take(self, _: int, message: bytes) -> bytes:
        if self.is_stream:
            return message
        self.whole += message
        return b""

    def end(self) -> bytes:
        return self.whole


@asynccontextmanager
async def hostile_grpc_replica(script: Script, port: int = 0) -> AsyncIterator[GrpcReplica]:
    """A replica that listens, until the block is left."""
    sock = socket.create_server(("127.0.0.1", port))
    replica = GrpcReplica(script, sock.getsockname()[1])
    replica.server = await asyncio.get_running_loop().create_server(lambda: GrpcWire(replica), sock=sock)
    try:
        yield replica
    finally:
        replica.stop_listening()
        for wire in list(replica.wires):
            wire.transport.abort()
        await until(lambda: not replica.wires)
