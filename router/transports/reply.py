"""`ports.Reply` over HTTP/1.1: writes a head and a body with its framing. Knows bytes; knows nothing of requests."""

import asyncio
from collections.abc import Callable
from functools import lru_cache
from http import HTTPStatus

from router.core import Headers, Outcome
from router.ports import Flow

_REASONS = {status.value: status.phrase for status in HTTPStatus}
_LAST_CHUNK = b"0\r\n\r\n"


@lru_cache(maxsize=1024)
def encode_head(status: int, headers: Headers) -> bytes:
    """Status line and headers, without the empty line that ends them."""
    lines = [f"{name}: {value}\r\n" for name, value in headers]
    return f"HTTP/1.1 {status} {_REASONS.get(status, 'Unknown')}\r\n{''.join(lines)}".encode("latin-1", "replace")


class HttpReply:
    """One answer on a client's connection. `on_end(may_go_on)` tells the connection that it is free, or must close.

    A body without a length is sent in chunks, or, to an HTTP/1.0 client, until the connection closes. The head waits
    for the first payload: both leave in one write.
    """

    __slots__ = ("_flow", "_head", "_is_chunked", "_is_http10", "_keeps_alive", "_on_end", "_transport")

    def __init__(
        self,
        transport: asyncio.Transport,
        on_end: Callable[[bool], None],
        *,
        keeps_alive: bool,
        is_http10: bool,
    ) -> None:
        self._transport: asyncio.Transport | None = transport
        self._on_end = on_end
        self._keeps_alive = keeps_alive
        self._is_http10 = is_http10
        self._is_chunked = False
        self._head: bytes | None = None
        self._flow: Flow | None = None

    # ports.Reply

    def bind(self, flow: Flow) -> None:
        self._flow = flow

    def head(self, status: int, headers: Headers, own: Headers = (), length: int | None = None) -> None:
        self._is_chunked = length is None and not self._is_http10
        self._keeps_alive = self._keeps_alive and (length is not None or self._is_chunked)
        framing = "transfer-encoding: chunked\r\n" if self._is_chunked else ""
        if length is not None:
            framing = f"content-length: {length}\r\n"
        if not self._keeps_alive:
            framing += "connection: close\r\n"
        elif self._is_http10:
            framing += "connection: keep-alive\r\n"
        lines = [f"{name}: {value}\r\n" for name, value in own]
        self._head = encode_head(status, headers) + f"{''.join(lines)}{framing}\r\n".encode("latin-1", "replace")

    def write(self, payload: bytes, framed: bytes | None = None) -> None:
        if self._transport is None or not payload:
            return
        if self._is_chunked:
            payload = framed or b"%x\r\n%b\r\n" % (len(payload), payload)
        if self._head is not None:
            payload, self._head = self._head + payload, None
        self._transport.write(payload)

    def end(self, outcome: Outcome, *, is_complete: bool) -> None:
        transport, self._transport = self._transport, None
        self._flow = None
        if transport is None:
            return
        if not is_complete:
            transport.abort()
            return
        rest = (self._head or b"") + (_LAST_CHUNK if self._is_chunked else b"")
        if rest:
            transport.write(rest)
        self._on_end(self._keeps_alive)

    # for the connection

    def pause(self) -> None:
        if self._flow is not None:
            self._flow.pause()

    def resume(self) -> None:
        if self._flow is not None:
            self._flow.resume()

    def lost(self) -> None:
        """The client's connection is gone: the flow hears it in this very turn of the loop."""
        flow, self._flow, self._transport = self._flow, None, None
        if flow is not None:
            flow.gone()
