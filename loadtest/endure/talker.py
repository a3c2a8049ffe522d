"""A client of `/v1/chat/ws` on a bare socket: a conversation, one turn after the other, and pings answered. Knows RFC
6455 through `websockets`' sans-I/O protocol, and the few words that a turn needs; checks nothing else."""

import asyncio
import json
from typing import cast

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.uri import parse_uri

from loadtest.peers.configs import MODEL

# What a turn brings, its end aside.
_ON_THE_WAY = frozenset(("session.opened", "request.started", "request.event"))


class Talker(asyncio.Protocol):
    """`is_open`: whether the handshake was taken; `has_ended`: whether the last turn was answered to its end. Both are
    settled at the latest when the connection ends."""

    def __init__(self, port: int) -> None:
        loop = asyncio.get_running_loop()
        self.is_open: asyncio.Future[bool] = loop.create_future()
        self.has_ended: asyncio.Future[bool] = loop.create_future()
        self._wire = ClientProtocol(parse_uri(f"ws://127.0.0.1:{port}/v1/chat/ws"))
        self._num_turns = 0

    def turn(self, text: str) -> None:
        """The next of its conversation; the first opens it."""
        if not self._num_turns:
            self._say(type="session.open", session="s", body={"model": MODEL, "max_tokens": 16})
        self._num_turns += 1
        self.has_ended = asyncio.get_running_loop().create_future()
        messages = [{"role": "user", "content": text}]
        self._say(type="input.commit", session="s", id=str(self._num_turns), messages=messages)

    def leave(self) -> None:
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._wire.send_request(self._wire.connect())
        self._flush()

    def data_received(self, data: bytes) -> None:
        self._wire.receive_data(data)
        for event in self._wire.events_received():
            if isinstance(event, Response):
                self.is_open.set_result(self._wire.handshake_exc is None)
            elif isinstance(event, Frame) and event.opcode is Opcode.TEXT:
                self._hear(bytes(event.data))
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        for settled in (self.is_open, self.has_ended):
            if not settled.done():
                settled.set_result(False)

    def _hear(self, data: bytes) -> None:
        kind = json.loads(data)["type"]
        if kind not in _ON_THE_WAY and not self.has_ended.done():
            self.has_ended.set_result(kind == "request.done")

    def _say(self, **word: object) -> None:
        self._wire.send_text(json.dumps(word).encode())
        self._flush()

    def _flush(self) -> None:
        """Pongs are among what is to be sent."""
        for data in self._wire.data_to_send():
            if data:
                self._transport.write(data)


async def connect(port: int) -> Talker:
    _, talker = await asyncio.get_running_loop().create_connection(lambda: Talker(port), "127.0.0.1", port)
    return talker
