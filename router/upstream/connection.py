"""One connection to a replica, the framing of the answer on it, and the exchange that it carries.

Knows bytes and HTTP/1.1 framing (httptools); knows nothing of pools, requests or what a body means. Parser callbacks
only note what came: the sink is called after the read, outside the parser, and may abort at any of its calls.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import cast
from urllib.parse import urlsplit

import httptools

from router.core import Attempt
from router.errors import BadAnswer, ConnectionCut, UpstreamError
from router.ports import Sink

MAX_HEAD_BYTES = 64 * 1024
# The kernel doubles it. It bounds what one read brings: with the 64 KiB that wait for a slow client, a stream keeps
# under 256 KiB in this process; and what the kernel gathers while we do not read.
RECEIVE_BUFFER_BYTES = 64 * 1024


class HttpExchange:
    """`ports.Exchange`: one attempt, on one connection or, after a resend, two."""

    __slots__ = ("_connection", "_has_bytes", "_is_paused", "_is_reused", "_resend", "attempt", "sink")

    def __init__(self, attempt: Attempt, sink: Sink, resend: Callable[["HttpExchange"], None]) -> None:
        self.attempt = attempt
        self.sink: Sink | None = sink
        self._resend = resend
        self._connection: Connection | None = None
        self._is_reused = self._has_bytes = self._is_paused = False

    def start(self, connection: "Connection", *, is_reused: bool) -> None:
        if self.sink is None:
            connection.abort()
            return
        self._connection, self._is_reused = connection, is_reused
        connection.send(self)
        if self._is_paused:
            connection.pause()

    def pause(self) -> None:
        self._is_paused = True
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        self._is_paused = False
        if self._connection is not None:
            self._connection.resume()

    def abort(self) -> None:
        """Detach and close, in this turn of the loop."""
        self.sink = None
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    def note_bytes(self) -> None:
        self._has_bytes = True

    def finish(self) -> None:
        self._connection = None
        sink, self.sink = self.sink, None
        if sink is not None:
            sink.on_end()

    def fail(self, error: UpstreamError) -> None:
        self._connection = None
        sink, self.sink = self.sink, None
        if sink is not None:
            sink.on_error(error)

    def lost(self, error: UpstreamError) -> None:
        """The connection broke: once more on a fresh one if nothing can have been answered, else an error."""
        if self._is_reused and not self._has_bytes and self.sink is not None:
            self._connection, self._is_reused = None, False
            self._resend(self)
        else:
            self.fail(error)


class Connection(asyncio.Protocol):
    """A socket to one replica. `keep` takes it back for reuse, `forget` hears that it closed."""

    def __init__(
        self, replica_id: str, keep: Callable[["Connection"], None], forget: Callable[["Connection"], None]
    ) -> None:
        self.replica_id = replica_id
        self.idle_since = 0.0
        self._keep = keep
        self._forget = forget
        self._transport: asyncio.Transport | None = None
        self._exchange: HttpExchange | None = None
        self._answer = Answer()

    @property
    def is_usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, exchange: HttpExchange) -> None:
        self._exchange, self._answer = exchange, Answer()
        if self._transport is None:
            self._drop(ConnectionCut("The connection to the replica was lost."))
        else:
            self._transport.writelines((_request_head(exchange.attempt), exchange.attempt.body))

    def pause(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def abort(self) -> None:
        self._exchange = None
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are not its subclasses
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            self.abort()  # bytes that nobody asked for: the framing of this connection cannot be trusted
            return
        exchange.note_bytes()
        try:
            self._answer.feed(data)
        except BadAnswer as error:
            self._answer.deliver(exchange)
            self._drop(error)
            return
        self._answer.deliver(exchange)
        if self._answer.is_complete and self._exchange is exchange:
            self._complete(exchange)

    def eof_received(self) -> None:
        exchange = self._exchange
        if exchange is not None and self._answer.ends_at_close:
            self._complete(exchange)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._forget(self)
        self._drop(ConnectionCut("The replica closed the connection before its answer was complete."))

    def _complete(self, exchange: HttpExchange) -> None:
        self._exchange = None
        if self._answer.is_reusable and self.is_usable:
            self.resume()  # the last read may have paused it: its next exchange, and its end, must be heard
            self._keep(self)
        elif self._transport is not None:
            self._transport.close()
        exchange.finish()

    def _drop(self, error: UpstreamError) -> None:
        exchange, self._exchange = self._exchange, None
        if self._transport is not None:
            self._transport.abort()
        if exchange is not None:
            exchange.lost(error)


class Answer:
    """The framing of one answer: what has come of it, and whether it ended. Interim (1xx) heads are skipped."""

    __slots__ = (
        "_has_extra",
        "_head_bytes",
        "_headers",
        "_is_head_delivered",
        "_is_head_seen",
        "_keeps_alive",
        "_parser",
        "_pieces",
        "_status",
        "ends_at_close",
        "is_complete",
    )

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._status = 0
        self._headers: list[tuple[str, str]] = []
        self._pieces: list[bytes] = []
        self._head_bytes = 0
        self._is_head_seen = self._is_head_delivered = self._has_extra = self._keeps_alive = False
        self.is_complete = False
        self.ends_at_close = False

    @property
    def is_reusable(self) -> bool:
        """Ended by its own framing, with nothing behind it, and the replica keeps the connection."""
        return self.is_complete and not self._has_extra and self._keeps_alive

    def feed(self, data: bytes) -> None:
        """Parse one read. Raises BadAnswer; what came before the fault may still be delivered."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self.is_complete:
                self._has_extra = True
                return
            raise BadAnswer(f"The replica's answer is not valid HTTP: {error}.") from None
        if not self._is_head_seen:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                raise BadAnswer(f"The head of the replica's answer is over {MAX_HEAD_BYTES} bytes.")

    def deliver(self, exchange: HttpExchange) -> None:
        """Hand what came to the exchange's sink, which may abort the exchange at any call."""
        if self._is_head_seen and not self._is_head_delivered and exchange.sink is not None:
            self._is_head_delivered = True
            exchange.sink.on_head(self._status, self._headers)
        if self._pieces:
            payload = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
            self._pieces = []
            if exchange.sink is not None:
                exchange.sink.on_body(payload)

    # httptools' callbacks

    def on_message_begin(self) -> None:
        self._has_extra = self.is_complete

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_head_seen:  # later ones are trailers
            self._headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        if self.is_complete:
            return
        self._status = self._parser.get_status_code()
        if self._status < 200:
            return
        self._is_head_seen = True
        names = {name for name, _ in self._headers}
        is_framed = "content-length" in names or "transfer-encoding" in names
        self.ends_at_close = not is_framed and self._status not in (204, 304)

    def on_body(self, payload: bytes) -> None:
        if not self.is_complete:
            self._pieces.append(payload)

    def on_message_complete(self) -> None:
        if self._is_head_seen:
            self.is_complete = True
            self._keeps_alive = bool(self._parser.should_keep_alive())  # right only here: it is reset after this call
        else:
            self._headers = []


def _request_head(attempt: Attempt) -> bytes:
    url = urlsplit(attempt.replica.spec.url)
    lines = [f"POST {url.path}{attempt.path} HTTP/1.1", f"host: {url.netloc}", f"content-length: {len(attempt.body)}"]
    lines += [f"{name}: {value}" for name, value in attempt.headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
