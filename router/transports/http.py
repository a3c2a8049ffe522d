"""The data port: HTTP/1.1 by asyncio.Protocol. Serves the inference routes; lends all other requests to aiohttp.

Knows connections, routes and request headers; what a request means is the proxy's matter. One request at a time is
served on a connection, others wait their turn. It keeps reading meanwhile: that is how it hears a client leave.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

from router import openai
from router.core import Request, Surface
from router.errand import Errand
from router.errors import InvalidRequest, MethodNotAllowed, PointsmanError, UnknownRoute
from router.headers import request_id
from router.heads import LATER, KnownHeads, RequestHead, learn_request
from router.ports import Clock
from router.transports.asking import new_request
from router.transports.dialects.desk import Dialects
from router.transports.engine_routes import EngineRoutes
from router.transports.loan import Loan
from router.transports.reader import Message, RequestReader
from router.transports.reply import HttpReply, encode_head
from router.transports.websocket.sockets import Sockets

Begin = Callable[[Request, HttpReply], Errand]

_SURFACES: dict[str, Surface] = {surface: surface for surface in Surface}
# Files come in multiparts of hundreds of megabytes.
_UPLOAD = b"POST /v1/files"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
# A slow client stops our reading of it, and of the replica, at this much unsent.
MAX_UNSENT_BYTES = 64 * 1024
MAX_BACKLOG_BYTES = 1024 * 1024
MAX_BACKLOG_REQUESTS = 64


@dataclass(frozen=True, slots=True)
class PortLimits:
    """Seconds and bytes. `head_timeout_s` from a request's first byte to its whole head; `body_timeout_s` of silence
    in a body; `idle_timeout_s` between requests; `linger_s` for a refused client to hear why."""

    request_timeout_s: float = 600.0
    max_body_bytes: int = 32 * 2**20
    head_timeout_s: float = 15.0
    body_timeout_s: float = 30.0
    idle_timeout_s: float = 75.0
    linger_s: float = 2.0


class SlowRequest(InvalidRequest):
    status = 408
    code = "request_too_slow"


class DataPort:
    """All client connections of one process. `begin` serves a request; `open_web` makes an aiohttp handler;
    `refused(status)` is told of requests that never reached the proxy."""

    def __init__(
        self,
        begin: Begin,
        open_web: Callable[[], asyncio.Protocol],
        refused: Callable[[int], None],
        clock: Clock,
        limits: PortLimits,
    ) -> None:
        self.begin = begin
        self.open_web = open_web
        self.refused = refused
        self.clock = clock
        self.limits = limits
        self.sockets: Sockets | None = None
        self.dialects: Dialects | None = None
        self.engine_routes: EngineRoutes | None = None
        self.has_jobs = False
        self.known = KnownHeads(learn_request)
        self.connections: set[ClientConnection] = set()

    def sweep(self) -> None:
        """Close connections that are too slow or idle for too long. Called about once a second."""
        now = self.clock()
        for connection in list(self.connections):
            connection.check(now)

    async def close(self) -> None:
        """Cancel what is still served, and close every connection."""
        serving = [connection.serving for connection in self.connections if connection.serving is not None]
        for errand in serving:
            errand.cancel()
        for errand in serving:
            await errand.wait()
        for connection in list(self.connections):
            connection.close()


class ClientConnection(asyncio.Protocol):
    """One client. `serving` (with its reply) or a loan is what it is busy with; `_since` is when that last changed."""

    def __init__(self, port: DataPort) -> None:
        self._port = port
        self._reader = RequestReader(port.limits.max_body_bytes, self._on_expect, port.known)
        self.serving: Errand | None = None
        self._reply: HttpReply | None = None
        self._loan: Loan | None = None
        self._is_busy = self._is_lingering = self._is_in_turn = False
        self._is_reading_paused = self._is_writing_paused = False
        self._since = port.clock()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=MAX_UNSENT_BYTES)
        self._port.connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self._is_lingering:
            return
        reader = self._reader
        was_mid_message = reader.is_mid_message
        if self._port.has_jobs and data.startswith(_UPLOAD) and not was_mid_message and not self._is_busy:
            self._hand_over(data)
            return
        reader.feed(data)
        if not was_mid_message or not reader.is_in_head:
            self._since = self._port.clock()
        if reader.waiting:
            self._serve_next()
            if reader.waiting and self._is_backlog_full:
                self._is_reading_paused = True
                self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._port.connections.discard(self)
        reply, self._reply = self._reply, None
        if reply is not None:
            reply.lost()
        if self._loan is not None:
            self._loan.lost(exc)

    def pause_writing(self) -> None:
        self._is_writing_paused = True
        if self._reply is not None:
            self._reply.pause()
        elif self._loan is not None:
            self._loan.pause()

    def resume_writing(self) -> None:
        self._is_writing_paused = False
        if self._reply is not None:
            self._reply.resume()
        elif self._loan is not None:
            self._loan.resume()
        self._serve_next()

    # for the port

    def check(self, now: float) -> None:
        limits, spent_s = self._port.limits, now - self._since
        if self._is_lingering:
            if spent_s > limits.linger_s:
                self._transport.abort()
        elif self._reader.is_in_head and spent_s > limits.head_timeout_s and not self._is_busy:
            self._refuse(SlowRequest("The request's head took too long."))
        elif self._reader.is_mid_message and spent_s > limits.body_timeout_s and not self._is_busy:
            self._refuse(SlowRequest("The request's body took too long."))
        elif not self._is_busy and spent_s > limits.idle_timeout_s:
            self._transport.abort()  # a close would wait for ever for a client that does not read the last answer

    def close(self) -> None:
        self._transport.close()

    # the rest

    @property
    def _is_free(self) -> bool:
        """No answer is under way or unread: an answer hears that its client reads slowly only if it began before."""
        return not (self._is_busy or self._is_writing_paused or self._is_lingering)

    @property
    def _is_backlog_full(self) -> bool:
        reader = self._reader
        return len(reader.waiting) > MAX_BACKLOG_REQUESTS or reader.num_bytes > MAX_BACKLOG_BYTES

    def _serve_next(self) -> None:
        """Those that wait, as long as each is answered at once. An answer that ends in here goes on with the loop and
        not with another one in it: there may be very many."""
        if self._is_in_turn:
            return
        waiting, self._is_in_turn = self._reader.waiting, True
        try:
            while waiting and self._is_free and not self._transport.is_closing():
                item = waiting.popleft()
                if isinstance(item, Message):
                    self._serve(item)
                else:
                    self._refuse(item.error)
        finally:
            self._is_in_turn = False
        if self._is_reading_paused and self._is_free:
            self._is_reading_paused = False
            self._transport.resume_reading()

    def _serve(self, message: Message) -> None:
        head, port = message.head, self._port
        surface = _SURFACES.get(head.path)
        self._is_busy = True
        if surface is None and head.path.startswith("/"):
            self._pass_on(message)
            return
        try:
            request = _request(message, surface, port.clock(), port.limits.request_timeout_s)
        except PointsmanError as error:
            self._answer(message, error)
            return
        self._reply = self._new_reply(head)
        errand = port.begin(request, self._reply)
        self.serving = errand if self._is_busy else None

    def _new_reply(self, head: RequestHead) -> HttpReply:
        return HttpReply(self._transport, self._free, keeps_alive=head.keeps_alive, is_http10=head.version == "1.0")

    def _pass_on(self, message: Message) -> None:
        """A request of another form, a WebSocket's beginning, or one for aiohttp, to which the connection is lent."""
        head, sockets, dialects = message.head, self._port.sockets, self._port.dialects
        routes = self._port.engine_routes
        if head.path.startswith(LATER) and not self._port.has_jobs:
            self._serve(Message(replace(head, path=head.path.removeprefix(LATER)), message.body))  # it may only prefer
        elif dialects is not None and dialects.takes(head.method, head.path):
            reply = self._reply = self._new_reply(head)
            errand = dialects.serve(head.path, head.headers, message.body, reply)
            self.serving = errand if self._is_busy else None
        elif sockets is not None and sockets.takes(head.path, head.headers):
            self._port.connections.discard(self)
            sockets.take(self._transport, head.target, head.headers)
        elif routes is not None and routes.takes(head.path):
            reply = self._reply = self._new_reply(head)
            target = head.target.decode("latin-1")
            errand = routes.serve(head.method, target, head.headers, message.body, reply)
            self.serving = errand if self._is_busy else None
        else:
            self._lend(message)

    def _hand_over(self, data: bytes) -> None:
        """A file is not held until it is whole: the connection is aiohttp's for good, which ends it with its answer."""
        self._port.connections.discard(self)
        handler = self._port.open_web()
        self._transport.set_protocol(handler)
        handler.connection_made(self._transport)
        handler.data_received(data)

    def _lend(self, message: Message) -> None:
        if self._loan is None:
            self._loan = Loan(self._transport, self._port.open_web, self._free)
        self._loan.lend(message)

    def _free(self, may_go_on: bool) -> None:
        """The answer is written: on to the next request, or the end."""
        self._reply = self.serving = None
        self._is_busy = False
        self._since = self._port.clock()
        if may_go_on:
            self._serve_next()
        else:
            self._transport.close()

    def _answer(self, message: Message, error: PointsmanError) -> None:
        """A whole request that is wrong: the connection goes on, with the next turn of `_serve_next`'s loop."""
        self._port.refused(error.status)
        head = message.head
        answer = _error_answer(error, request_id(head.headers), head.keeps_alive)
        if head.method == "HEAD":
            answer = answer[: answer.index(b"\r\n\r\n") + 4]
        self._transport.write(answer)
        self._is_busy = False
        if not head.keeps_alive:
            self._transport.close()

    def _refuse(self, error: PointsmanError) -> None:
        """What came cannot be framed, or is too much: say why, and read no more. A close at once would let the
        kernel reset the connection before the client has read the answer."""
        self._port.refused(error.status)
        self._is_lingering = True
        self._since = self._port.clock()
        self._transport.write(_error_answer(error, request_id(()), False))
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def _on_expect(self) -> None:
        if not self._is_busy:
            self._transport.write(_CONTINUE)


def _request(message: Message, surface: Surface | None, now: float, timeout_s: float) -> Request:
    head = message.head
    if surface is None:
        raise UnknownRoute(f"There is no route {head.method} {head.path}: a path begins with a slash.")
    if head.method != "POST":
        raise MethodNotAllowed(f"{head.path} takes POST, not {head.method}.")
    return new_request(surface, message.body, head.headers, now, now + timeout_s)


def _error_answer(error: PointsmanError, id: str, keeps_alive: bool) -> bytes:
    body = openai.error_body(error)
    fields = [("content-type", "application/json"), ("content-length", str(len(body))), ("x-request-id", id)]
    if isinstance(error, MethodNotAllowed):
        fields.append(("allow", "POST"))
    if not keeps_alive:
        fields.append(("connection", "close"))
    return encode_head(error.status, tuple(fields)) + b"\r\n" + body
