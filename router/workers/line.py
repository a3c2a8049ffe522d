"""Frames over a stream socket: bytes in any pieces to payloads, and one end of a connection. Knows lengths and bytes;
knows nothing of what payloads mean (`frames.py`).
"""

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from router.workers.doors import peer_is_us
from router.workers.frames import LENGTH_BYTES, MAX_FRAME_BYTES, Message, pack

log = logging.getLogger(__name__)


class FrameReader:
    """Bytes in any pieces to payloads. Raises ValueError for a length that no frame has."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        self._buffer += data
        payloads, at = [], 0
        while (begin := at + LENGTH_BYTES) <= len(self._buffer):
            length = int.from_bytes(self._buffer[at:begin], "big")
            if length > MAX_FRAME_BYTES:
                raise ValueError(f"a frame of {length} bytes")
            if begin + length > len(self._buffer):
                break
            at = begin + length
            payloads.append(bytes(self._buffer[begin:at]))
        del self._buffer[:at]
        return payloads


class Line(asyncio.Protocol):
    """One end of a connection that carries frames. `on_payload` raises to refuse one: the connection is then closed."""

    def __init__(self, on_payload: Callable[["Line", bytes], None], on_lost: Callable[["Line"], None]) -> None:
        self._on_payload = on_payload
        self._on_lost = on_lost
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def num_unsent(self) -> int:
        """Bytes that the other side has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def peer_is_us(self) -> bool:
        """Is the other side a process of our own user?"""
        return self._transport is not None and peer_is_us(self._transport.get_extra_info("socket"))

    def send(self, message: Message) -> None:
        """Never waits; what is sent to nobody is lost."""
        self.send_frame(pack(message))

    def send_frame(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """What was sent still goes out."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            for payload in self._reader.feed(data):
                self._on_payload(self, payload)
        except ValueError as error:  # msgspec's errors are ValueErrors
            log.warning("a process of ours said what cannot be understood: %s", error)
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._on_lost(self)

    def __repr__(self) -> str:
        return f"<Line {'open' if self.is_open else 'closed'} {self.num_unsent} bytes unsent>"
