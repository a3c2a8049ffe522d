"""`ports.Reply` over a WebSocket: the real socket on loopback, and a client that tells what it heard as SSE would have
said it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from websockets.asyncio.client import ClientConnection as Wire
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from router.core import Headers, Outcome, Request
from router.errand import Errand
from router.ports import Flow, Reply
from router.transports.http import ClientConnection, DataPort, PortLimits
from router.transports.responses.here import ArchiveHere
from router.transports.websocket.chat import ChatLimits
from router.transports.websocket.socket import SocketLimits
from router.transports.websocket.sockets import CHAT_PATH, Sockets
from tests.contracts.answers import Answer
from tests.contracts.hostile import DONE
from tests.fakes import Station, until
from tests.router.transports.dialects.rig import new_desk

# A socket's own buffers would hide for megabytes that nobody reads.
READ_AHEAD = (1, None)


class SocketClient:
    """Requests on one socket are numbered as they are asked."""

    def __init__(self, wire: Wire) -> None:
        self.answers: list[Answer] = []
        self.is_closed = False
        self._wire = wire
        self._by_id: dict[str, Answer] = {}
        self._num_asked = 0
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._tasks = [asyncio.get_running_loop().create_task(self._hear())]

    def ask(self, *_: tuple[str, str], **fields: object) -> None:
        """A chat request. It has no headers of its own: they were the socket's."""
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
        word = {"type": "request.create", "id": str(self._num_asked), "body": body}
        self._num_asked += 1
        self._tasks.append(asyncio.get_running_loop().create_task(self._wire.send(json.dumps(word))))

    async def answer(self, number: int = 0) -> Answer:
        """The answer of that number, once it is at its end, however it ends."""
        await until(lambda: (len(self.answers) > number and self.answers[number].is_complete) or self.is_closed)
        return self.answers[number]

    async def head(self, number: int = 0) -> Answer:
        await until(lambda: len(self.answers) > number or self.is_closed)
        return self.answers[number]

    async def read_until(self, text: bytes, number: int = 0) -> bytes:
        """The payload so far, once it has this in it."""
        answer = await self.head(number)
        await until(lambda: text in answer.body or answer.is_complete or self.is_closed)
        assert text in answer.body
        return answer.payload

    def stop_reading(self) -> None:
        self._may_read.clear()

    def read_on(self) -> None:
        self._may_read.set()

    def leave(self) -> None:
        self._wire.transport.abort()
        self._may_read.set()

    async def _hear(self) -> None:
        try:
            while True:
                await self._may_read.wait()
                self._take(await self._wire.recv(decode=False))
        except ConnectionClosed:
            self.is_closed = True

    def _take(self, data: bytes) -> None:
        word = json.loads(data)
        answer = self._by_id.get(word["id"])
        if answer is None:
            answer = self._by_id[word["id"]] = Answer(200, {})
            self.answers.append(answer)
        match word["type"]:
            case "request.event":
                answer.body += b"data: " + data.partition(b'"event":')[2][:-1] + b"\n\n"
            case "request.done":
                answer.body += DONE
                answer.is_complete = True
            case "error":
                self._fail(answer, word)

    def _fail(self, answer: Answer, word: Any) -> None:
        """An answer that never began has a status of its own; else the error is its last event."""
        body = json.dumps({"error": word["error"]}).encode()
        if answer.body or word["status"] is None:
            answer.body += b"data: " + body + b"\n\n" + DONE
        else:
            answer.status = word["status"]
            answer.body += body
        answer.is_complete = True


@dataclass(eq=False)
class SocketReplies:
    """`on_loss` is called right after the socket has heard that its client is gone, in the same turn of the loop."""

    station: Station
    limits: PortLimits = field(default_factory=PortLimits)
    on_loss: Callable[[], None] = lambda: None
    clients: list[SocketClient] = field(default_factory=list)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["SocketReplies"]:
        station, loop = self.station, asyncio.get_running_loop()
        desk = new_desk(station, ArchiveHere(station.clock))
        runner = web.AppRunner(web.Application())
        await runner.setup()
        assert runner.server is not None
        port = DataPort(station.proxy.begin, runner.server, lambda _: None, station.clock, self.limits)
        limits = ChatLimits(self.limits.request_timeout_s)
        port.sockets = sockets = Sockets(self._begin, desk, station.clock, SocketLimits(), limits, ())
        self.sockets = sockets
        server = await loop.create_server(lambda: ClientConnection(port), "127.0.0.1", 0)
        self.url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}{CHAT_PATH}"
        try:
            yield self
        finally:
            server.close()
            sockets.close()
            for client in self.clients:
                client.leave()
            await until(lambda: all(client.is_closed for client in self.clients) and not sockets.open)
            await port.close()
            await desk.runs.close()
            await runner.cleanup()

    async def connect(self) -> SocketClient:
        wire = await connect(self.url, max_queue=READ_AHEAD, max_size=None, compression=None)
        self.clients.append(SocketClient(wire))
        return self.clients[-1]

    @property
    def num_unsent(self) -> int:
        """Bytes that wait in this process for clients that do not read."""
        return sum(socket._transport.get_write_buffer_size() for socket in self.sockets.open)

    def _begin(self, request: Request, reply: Reply) -> Errand:
        return self.station.proxy.begin(request, _Watched(reply, self))


@dataclass(eq=False)
class _Watched:
    """A reply whose way back tells when it was gone."""

    inner: Reply
    replies: SocketReplies
    flow: Flow | None = None

    def bind(self, flow: Flow) -> None:
        self.flow = flow
        self.inner.bind(self)

    def head(self, status: int, headers: Headers, own: Headers = (), length: int | None = None) -> None:
        self.inner.head(status, headers, own, length)

    def write(self, payload: bytes, framed: bytes | None = None) -> None:
        self.inner.write(payload, framed)

    def end(self, outcome: Outcome, *, is_complete: bool) -> None:
        self.inner.end(outcome, is_complete=is_complete)

    def pause(self) -> None:
        assert self.flow is not None
        self.flow.pause()

    def resume(self) -> None:
        assert self.flow is not None
        self.flow.resume()

    def gone(self) -> None:
        assert self.flow is not None
        self.flow.gone()
        self.replies.on_loss()
