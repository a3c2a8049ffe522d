"""One connection to a replica. Knows sockets; how an answer is framed is in `answer.py`, whose it is in `exchange.py`.
Knows nothing of pools, requests or what a body means."""

import asyncio
import socket
from collections.abc import Callable
from functools import lru_cache
from typing import cast
from urllib.parse import urlsplit

from router.core import Attempt, Headers
from router.errors import BadAnswer, ConnectionCut, UpstreamError
from router.headers import TO_PROVIDERS
from router.heads import AnswerHead, KnownHeads
from router.spec import ReplicaSpec
from router.upstream.answer import Answer, ChunkedAnswer, ParsedAnswer, SizedAnswer
from router.upstream.exchange import HttpExchange

# The kernel doubles it. It bounds what one read brings: with the 64 KiB that wait for a slow client, a stream keeps
# under 256 KiB in this process; and what the kernel gathers while we do not read.
RECEIVE_BUFFER_BYTES = 64 * 1024
# A body up to this is copied behind its head: that costs less than a write of two pieces.
MAX_JOINED_BYTES = 16 * 1024


class Connection(asyncio.Protocol):
    """A socket to one replica. `keep` takes it back for reuse, `forget` hears that it closed. `idle_s`: how long it may
    idle, where the replica has said; `idle_until`: while it idles."""

    def __init__(
        self,
        replica_id: str,
        known: KnownHeads[AnswerHead],
        keep: Callable[["Connection"], None],
        forget: Callable[["Connection"], None],
    ) -> None:
        self.replica_id = replica_id
        self.idle_s: float | None = None
        self.idle_until = 0.0
        self._known = known
        self._keep = keep
        self._forget = forget
        self._transport: asyncio.Transport | None = None
        self._exchange: HttpExchange | None = None
        self._answer: Answer | None = None
        self._last_headers: Headers = ()
        self._last_path = self._last_url = ""
        self._last_head = b""

    @property
    def is_usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, exchange: HttpExchange) -> None:
        self._exchange, self._answer = exchange, None
        if self._transport is None:
            self._drop(ConnectionCut("The connection to the replica was lost."))
        else:
            head, body = self._head(exchange.attempt), exchange.attempt.body
            if len(body) <= MAX_JOINED_BYTES:
                self._transport.write(head + body)
            else:
                self._transport.writelines((head, body))

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
        answer = self._answer
        if answer is None:
            exchange.has_bytes = True
            answer, data = self._begin(data)
            self._answer = answer
        try:
            answer.feed(data)
        except BadAnswer as error:
            answer.deliver(exchange)
            self._drop(error)
            return
        answer.deliver(exchange)
        if answer.is_complete and self._exchange is exchange:
            self._complete(exchange, answer)

    def eof_received(self) -> None:
        exchange, answer = self._exchange, self._answer
        if exchange is not None and answer is not None and answer.ends_at_close:
            self._complete(exchange, answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._forget(self)
        self._drop(ConnectionCut("The replica closed the connection before its answer was complete."))

    def _head(self, attempt: Attempt) -> bytes:
        """Most often what the last request had, but for id and length."""
        url, path, headers = attempt.replica.spec.url, attempt.path, attempt.headers
        if headers is not self._last_headers or path is not self._last_path or url is not self._last_url:
            self._last_headers, self._last_path, self._last_url = headers, path, url
            self._last_head = _common_head(attempt.replica.spec, path, headers)
        own = f"x-request-id: {attempt.request_id}\r\ncontent-length: {len(attempt.body)}\r\n\r\n"
        return self._last_head + own.encode()

    def _begin(self, data: bytes) -> tuple[Answer, bytes]:
        """An answer by its first read, with the bytes to feed it: behind a head that is known, else from its start."""
        found = self._known.find(data)
        if found is None:
            return ParsedAnswer(), data
        return (ChunkedAnswer if found.head.is_chunked else SizedAnswer)(found), data[found.body_at :]

    def _complete(self, exchange: HttpExchange, answer: Answer) -> None:
        self._exchange = None
        if answer.is_reusable and self.is_usable:
            if exchange.is_paused:
                self.resume()  # its next exchange, and its end, must be heard
            self.idle_s = answer.idle_s
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


@lru_cache(maxsize=1024)
def _common_head(spec: ReplicaSpec, path: str, headers: Headers) -> bytes:
    """A provider's base URL stands for `/v1` and what is before it; it is told no more than it must know."""
    parts = urlsplit(spec.url)
    if spec.models:
        path, headers = path.removeprefix("/v1"), tuple(pair for pair in headers if pair[0] in TO_PROVIDERS)
    lines = [f"POST {parts.path}{path} HTTP/1.1\r\nhost: {parts.netloc}\r\n"]
    lines += [f"{name}: {value}\r\n" for name, value in headers]
    return "".join(lines).encode("latin-1")
