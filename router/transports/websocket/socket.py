"""One WebSocket: frames in and out, pings, limits, the closing handshake. Knows RFC 6455 through `websockets`' sans-I/O
protocol; what messages say is the `Talk`'s matter.

It takes a client's connection over from the data port after the head of its upgrade request.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from websockets.exceptions import InvalidState
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request as Handshake
from websockets.server import ServerProtocol
from websockets.typing import Origin, Subprotocol

from router.core import Headers
from router.ports import Clock, Talk

MAX_UNSENT_BYTES = 64 * 1024
# Sent by clients that cannot set headers (browsers) behind a protocol's name: `pointsman.key.SECRET`.
KEY_PREFIX = "pointsman.key."


@dataclass(frozen=True, slots=True)
class SocketLimits:
    """Bytes and seconds. A socket is pinged after `ping_after_s` of silence and dropped `pong_timeout_s` later."""

    max_message_bytes: int = 32 * 2**20
    ping_after_s: float = 20.0
    pong_timeout_s: float = 20.0
    close_timeout_s: float = 5.0


OpenTalk = Callable[["Socket"], Talk]


class Socket(asyncio.Protocol):
    """`headers` are the client's; `key` is what it showed as a subprotocol. Use `send` and `close` once it is open."""

    def __init__(
        self,
        transport: asyncio.Transport,
        open_talk: OpenTalk,
        limits: SocketLimits,
        clock: Clock,
        on_lost: Callable[["Socket"], None],
        origins: tuple[str, ...] = (),
        subprotocol: str = "pointsman",
    ) -> None:
        self.headers: Headers = ()
        self.key: str | None = None
        self._transport = transport
        self._limits = limits
        self._clock = clock
        self._on_lost = on_lost
        self._open_talk = open_talk
        self._talk: Talk | None = None
        self._pieces: list[bytes] = []
        self._num_bytes = 0
        self._last_heard = clock()
        self._pinged_at: float | None = None
        self._closed_at: float | None = None
        allowed = [cast(Origin, origin) for origin in origins]
        self._wire = ServerProtocol(
            # A client that is no browser has no origin: that is allowed with any list.
            origins=[*allowed, None] if allowed else None,
            subprotocols=[cast(Subprotocol, subprotocol)],
            select_subprotocol=_select(subprotocol),
            max_size=limits.max_message_bytes,
        )

    # for the port

    def begin(self, head: bytes, headers: Headers) -> None:
        """Answer the handshake; `head` is the request's. One that is wrong is answered so, and the connection ends."""
        self.headers = headers
        self.key = _key_of(headers)
        self._transport.set_protocol(self)
        self._transport.set_write_buffer_limits(high=MAX_UNSENT_BYTES)
        self.data_received(head)

    def check(self, now: float) -> None:
        """Ping a silent client; drop one that does not answer, or does not close. Called about once a second."""
        limits = self._limits
        if self._closed_at is not None:
            if now - self._closed_at > limits.close_timeout_s:
                self._transport.abort()
        elif self._pinged_at is not None:
            if now - self._pinged_at > limits.pong_timeout_s:
                self._transport.abort()
        elif now - self._last_heard > limits.ping_after_s and self._talk is not None:
            self._pinged_at = now
            self._wire.send_ping(b"")
            self._flush()

    # for the talk

    def send(self, text: bytes) -> None:
        if self._closed_at is None and not self._transport.is_closing():
            self._wire.send_text(text)
            self._flush()

    def close(self, code: int = CloseCode.NORMAL_CLOSURE, reason: str = "") -> None:
        if self._closed_at is None:
            self._closed_at = self._clock()
            try:
                self._wire.send_close(code, reason[:120])
            except InvalidState:  # the handshake has not ended, or never will
                self._transport.close()
                return
            self._flush()

    # asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        self._last_heard, self._pinged_at = self._clock(), None
        self._wire.receive_data(data)
        for event in self._wire.events_received():
            if isinstance(event, Handshake):
                self._answer(event)
            else:
                self._take(cast(Frame, event))
        self._flush()

    def eof_received(self) -> None:
        self._wire.receive_eof()
        self._flush()

    def pause_writing(self) -> None:
        if self._talk is not None:
            self._talk.pause()

    def resume_writing(self) -> None:
        if self._talk is not None:
            self._talk.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        talk, self._talk = self._talk, None
        if talk is not None:
            talk.lost()
        self._on_lost(self)

    # the rest

    def _answer(self, handshake: Handshake) -> None:
        response = self._wire.accept(handshake)
        self._wire.send_response(response)
        if response.status_code == 101:
            self._talk = self._open_talk(self)

    def _take(self, frame: Frame) -> None:
        match frame.opcode:
            case Opcode.CLOSE:
                self._closed_at = self._closed_at or self._clock()
            case Opcode.BINARY:
                self._fail(CloseCode.UNSUPPORTED_DATA, "messages are text")
            case Opcode.TEXT | Opcode.CONT:
                self._add(frame)

    def _add(self, frame: Frame) -> None:
        self._num_bytes += len(frame.data)
        if self._num_bytes > self._limits.max_message_bytes:
            self._fail(CloseCode.MESSAGE_TOO_BIG, "the message is too long")
            return
        self._pieces.append(bytes(frame.data))
        if not frame.fin:
            return
        whole, self._pieces, self._num_bytes = b"".join(self._pieces), [], 0
        try:
            text = whole.decode()
        except UnicodeDecodeError:
            self._fail(CloseCode.INVALID_DATA, "the message is not UTF-8")
            return
        if self._talk is not None and self._closed_at is None:
            self._talk.received(text)

    def _fail(self, code: int, reason: str) -> None:
        self._closed_at = self._closed_at or self._clock()
        self._wire.fail(code, reason)

    def _flush(self) -> None:
        if self._transport.is_closing():
            return
        for data in self._wire.data_to_send():
            if data:
                self._transport.write(data)
            else:
                self._closed_at = self._closed_at or self._clock()
                if self._transport.can_write_eof():
                    self._transport.write_eof()
        if self._wire.close_expected() and self._closed_at is None:
            self._closed_at = self._clock()

    def __repr__(self) -> str:
        return f"<Socket {self._wire.state.name}>"


def _key_of(headers: Headers) -> str | None:
    for name, value in headers:
        if name == "sec-websocket-protocol":
            for offered in value.split(","):
                if offered.strip().startswith(KEY_PREFIX):
                    return offered.strip().removeprefix(KEY_PREFIX)
    return None


def _select(name: str) -> Callable[[ServerProtocol, object], Subprotocol | None]:
    """Ours where it is offered: a client that offers none is served without one, and a key is never echoed."""

    def select(_: ServerProtocol, offered: object) -> Subprotocol | None:
        names = cast("list[Subprotocol]", offered)
        return cast(Subprotocol, name) if name in names else None

    return select
