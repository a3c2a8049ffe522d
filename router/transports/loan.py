"""Lends a client's connection to aiohttp, one request at a time, and takes it back when the response has ended.

Knows aiohttp's server protocol as an asyncio.Protocol, and response framing; knows no routes. Our connection stays the
owner of the socket: aiohttp's handler sees this transport and is fed one whole request per loan.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import httptools

from router.transports.reader import Message


class Loan(asyncio.Transport):
    """What aiohttp's handler takes for its transport. `on_return(may_go_on)` is called once per loan."""

    def __init__(
        self,
        transport: asyncio.Transport,
        open_handler: Callable[[], asyncio.Protocol],
        on_return: Callable[[bool], None],
    ) -> None:
        super().__init__()
        self._transport = transport
        self._open_handler = open_handler
        self._on_return = on_return
        self._handler: asyncio.Protocol | None = None
        self._tracker: httptools.HttpResponseParser | None = None
        self._is_head_request = False

    def lend(self, message: Message) -> None:
        """Give one request to aiohttp."""
        if self._handler is None:
            self._handler = self._open_handler()
            self._handler.connection_made(self)
        self._tracker = httptools.HttpResponseParser(self)
        self._is_head_request = message.head.method == "HEAD"
        self._handler.data_received(_request_bytes(message))

    def lost(self, error: Exception | None) -> None:
        """The client's connection is gone."""
        handler, self._handler, self._tracker = self._handler, None, None
        if handler is not None:
            handler.connection_lost(error)

    def pause(self) -> None:
        if self._handler is not None:
            self._handler.pause_writing()

    def resume(self) -> None:
        if self._handler is not None:
            self._handler.resume_writing()

    # asyncio.Transport, as far as aiohttp uses it

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._transport.write(data)
        if self._tracker is not None:
            self._tracker.feed_data(bytes(data))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        """aiohttp is done with the connection: in a loan it closes for good, between loans only its handler goes."""
        if self._tracker is not None:
            self._tracker = None
            self._transport.close()
        else:
            self.lost(None)

    def abort(self) -> None:
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """Whole requests are handed over: there is nothing to pause."""

    def resume_reading(self) -> None:
        """See `pause_reading`."""

    # httptools' callbacks: where the response ends

    def on_headers_complete(self) -> None:
        if self._is_head_request:
            self._return()

    def on_message_complete(self) -> None:
        if not self._is_head_request:
            self._return()

    def _return(self) -> None:
        if self._tracker is None or self._tracker.get_status_code() < 200:
            return
        may_go_on = bool(self._tracker.should_keep_alive())
        self._tracker = None
        # Not from within aiohttp's write: its handler must first come to rest.
        asyncio.get_running_loop().call_soon(self._on_return, may_go_on)


def _request_bytes(message: Message) -> bytes:
    """The request with one framing, whatever it came in."""
    head, dropped = message.head, ("content-length", "transfer-encoding", "expect", "upgrade")
    line = b"%s %s HTTP/%s\r\n" % (head.method.encode(), head.target, head.version.encode())
    lines = [f"{name}: {value}\r\n" for name, value in head.headers if name not in dropped]
    lines.append(f"content-length: {len(message.body)}\r\n\r\n")
    return line + "".join(lines).encode("latin-1") + message.body
