"""A client on a bare socket: one request after the other, each answer seen come in, left in the middle where that is
wanted. Knows just enough of HTTP and of the mock to tell a first event and an end; checks nothing else."""

import asyncio
import json
from typing import cast

from loadtest.peers.configs import MODEL

DONE = b"data: [DONE]"
_VERSION = b"HTTP/1.1 "


class Client(asyncio.Protocol):
    """Of the last request, `has_begun` is whether a first event came, and `has_ended` whether all of the answer did:
    both are settled at the latest when the connection ends. `status` is the answer's, 0 until there is one; any but 200
    ends it."""

    def __init__(self) -> None:
        self.has_begun: asyncio.Future[bool]
        self.has_ended: asyncio.Future[bool]

    def ask(self, text: str, **fields: object) -> None:
        loop = asyncio.get_running_loop()
        self.has_begun, self.has_ended = loop.create_future(), loop.create_future()
        self._tail, self.status = b"", 0
        body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": text}], **fields}).encode()
        self._is_stream = bool(fields.get("stream"))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: router\r\ncontent-length: {len(body)}\r\n\r\n"
        self._transport.write(head.encode() + body)

    def leave(self) -> None:
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        # Before it may come the last chunk of the answer before.
        if not self.status and (at := data.find(_VERSION)) >= 0:
            self.status = int(data[at + len(_VERSION) :][:3])
        self._tail = (self._tail + data)[-4096:]
        if not self.has_begun.done() and b"data: " in self._tail:
            self.has_begun.set_result(True)
        if not self.has_ended.done() and (DONE if self._is_stream else b"completion_tokens") in self._tail:
            self.has_ended.set_result(True)
        if self.status not in (0, 200):
            self._settle()

    def connection_lost(self, exc: Exception | None) -> None:
        self._settle()

    def _settle(self) -> None:
        for ended in (self.has_begun, self.has_ended):
            if not ended.done():
                ended.set_result(False)


async def connect(port: int) -> Client:
    _, client = await asyncio.get_running_loop().create_connection(Client, "127.0.0.1", port)
    return client
