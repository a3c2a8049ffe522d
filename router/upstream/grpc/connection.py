"""One HTTP/2 connection to a replica, with many calls at once. Knows sockets, frames and windows; whose a call is and
what it says are `stream.py`'s and `exchange.py`'s matter."""

import asyncio
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from router.errors import BadAnswer, ConnectionCut, UpstreamError
from router.upstream.grpc import frames, hpack
from router.upstream.grpc.frames import Flag, Kind, Reason, Setting
from router.upstream.grpc.statuses import Code, Status, error_of
from router.upstream.grpc.stream import Stream

if TYPE_CHECKING:
    from router.upstream.grpc.exchange import GrpcExchange

# One call that is not read must not hold up the others: what they may send together is far more than what each may.
SHARED_WINDOW_BYTES = 16 * 2**20
MAX_BLOCK_BYTES = 64 * 1024
MAX_STREAM_ID = 2**31 - 2
_OPENING = (
    frames.PREFACE
    + frames.settings({Setting.HEADER_TABLE_SIZE: 0, Setting.ENABLE_PUSH: 0})
    + frames.window_update(0, SHARED_WINDOW_BYTES - frames.WINDOW_BYTES)
)
# The kernel notices a host that is gone, also where nobody speaks.
_KEEPALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 25_000))


class Http2Connection(asyncio.Protocol):
    """`greeted` is done once the replica has said its settings, or is lost; `forget` hears that it closed."""

    def __init__(self, forget: Callable[["Http2Connection"], None]) -> None:
        self.greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.streams: dict[int, Stream] = {}
        self.idle_since = 0.0
        self._forget = forget
        self._transport: asyncio.Transport | None = None
        self._is_leaving = False
        self._rest = b""
        self._next_id = 1
        self._block: tuple[int, int, bytes] | None = None
        self._most_streams = MAX_STREAM_ID
        self._frame_bytes = frames.FRAME_BYTES
        self._stream_window = self._send_window = frames.WINDOW_BYTES
        self._num_unread = 0

    @property
    def is_usable(self) -> bool:
        """Does it take another call?"""
        return (
            not self._is_leaving
            and len(self.streams) < self._most_streams
            and self._next_id < MAX_STREAM_ID
            and self._transport is not None
            and not self._transport.is_closing()
        )

    def call(self, block: bytes, message: bytes, exchange: "GrpcExchange", index: int) -> Stream:
        """Send one message, the only one of its call; it must be usable. `block`: the call's headers."""
        assert self._transport is not None
        stream = self.streams[self._next_id] = Stream(self, self._next_id, self._stream_window, exchange, index)
        self._next_id += 2
        stream.unsent = memoryview(b"\0" + len(message).to_bytes(4, "big") + message)
        self._transport.write(frames.headers(stream.id, block, self._frame_bytes) + self._sendable(stream))
        return stream

    def drop(self, stream: Stream) -> None:
        """The call is of no interest any more."""
        if self.streams.pop(stream.id, None) is not None and self._transport is not None:
            self._transport.write(frames.reset(stream.id, Reason.CANCEL))

    def allow(self, stream: Stream, num_bytes: int) -> None:
        """So much of what came on this call has been passed on."""
        if stream.id in self.streams and self._transport is not None:
            self._transport.write(frames.window_update(stream.id, num_bytes))

    def abort(self) -> None:
        """Close at once. Who still has a call here hears nothing."""
        for stream in self.streams.values():
            stream.exchange = None
        self.streams.clear()
        if self._transport is not None:
            self._transport.abort()

    def lose(self, error: UpstreamError) -> None:
        """The connection cannot be gone on with."""
        streams, self.streams = list(self.streams.values()), {}
        if self._transport is not None:
            self._transport.abort()
        for stream in streams:
            stream.lose(error)

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are not its subclasses
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            if (option := getattr(socket, name, None)) is not None:  # Linux has them all
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
        self._transport.write(_OPENING)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._forget(self)
        if not self.greeted.done():
            self.greeted.set_result(None)
        self.lose(ConnectionCut("The replica closed the connection before its answer was complete."))

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        at, end = 0, len(data)
        try:
            while end - at >= frames.HEAD_BYTES:
                stop = at + frames.HEAD_BYTES + int.from_bytes(data[at : at + 3], "big")
                if stop - at > frames.HEAD_BYTES + frames.FRAME_BYTES:
                    raise BadAnswer("The replica sent a frame of more than was agreed on, or speaks no HTTP/2.")
                if stop > end:
                    break
                stream_id = int.from_bytes(data[at + 5 : at + 9], "big") & 0x7FFFFFFF
                self._take(data[at + 3], data[at + 4], stream_id, data[at + frames.HEAD_BYTES : stop])
                at = stop
        except BadAnswer as error:
            self.lose(error)
        except ValueError as error:
            self.lose(BadAnswer(f"The replica's answer is not valid HTTP/2: {error}."))
        self._rest = data[at:]

    # frames

    def _take(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """One frame. Raises BadAnswer or ValueError."""
        if self._block is not None and kind != Kind.CONTINUATION:
            raise BadAnswer("The replica broke off a header block.")
        match kind:
            case Kind.DATA:
                self._on_data(flags, stream_id, payload)
            case Kind.HEADERS:
                self._on_block(flags, stream_id, frames.unpadded(flags, payload))
            case Kind.CONTINUATION:
                self._on_continuation(flags, stream_id, payload)
            case Kind.WINDOW_UPDATE:
                self._on_window(stream_id, int.from_bytes(payload, "big") & 0x7FFFFFFF)
            case Kind.RST_STREAM:
                self._on_reset(stream_id, int.from_bytes(payload, "big"))
            case Kind.SETTINGS if not flags & Flag.ACK:
                self._on_settings(payload)
            case Kind.PING if not flags & Flag.ACK:
                self._write(frames.frame(Kind.PING, Flag.ACK, 0, payload))
            case Kind.GOAWAY:
                self._on_goaway(payload)
            case Kind.PUSH_PROMISE:
                raise BadAnswer("The replica pushes, which was ruled out.")

    def _on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._num_unread += len(payload)
        if self._num_unread >= SHARED_WINDOW_BYTES // 2:
            self._write(frames.window_update(0, self._num_unread))
            self._num_unread = 0
        stream = self.streams.get(stream_id)
        if stream is None:
            return  # let go of a moment ago
        stream.take(frames.unpadded(flags, payload) if flags & Flag.PADDED else payload, len(payload))
        if flags & Flag.END_STREAM:
            self.streams.pop(stream_id, None)
            stream.lose(ConnectionCut("The replica ended its answer without a status."))

    def _on_block(self, flags: int, stream_id: int, block: bytes) -> None:
        if len(block) > MAX_BLOCK_BYTES:
            raise BadAnswer(f"The head of the replica's answer is over {MAX_BLOCK_BYTES} bytes.")
        if not flags & Flag.END_HEADERS:
            self._block = (flags, stream_id, block)
            return
        fields, stream = hpack.fields(block), self.streams.get(stream_id)
        if stream is None:
            return
        is_end = bool(flags & Flag.END_STREAM)
        if is_end:
            del self.streams[stream_id]
            if stream.unsent:  # it says no before it has heard all
                self._write(frames.reset(stream_id, Reason.NO_ERROR))
        stream.headers(fields, is_end=is_end)

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if self._block is None or self._block[1] != stream_id:
            raise BadAnswer("The replica goes on with a header block that it did not begin.")
        first, _, begun = self._block
        self._block = None
        self._on_block(first | flags & Flag.END_HEADERS, stream_id, begun + payload)

    def _on_window(self, stream_id: int, num_bytes: int) -> None:
        if not stream_id:
            self._send_window += num_bytes
            waiting = [stream for stream in self.streams.values() if stream.unsent]
        else:
            found = self.streams.get(stream_id)
            if found is None:
                return
            found.send_window += num_bytes
            waiting = [found] if found.unsent else []
        for stream in waiting:
            self._write(self._sendable(stream))

    def _on_reset(self, stream_id: int, reason: int) -> None:
        stream = self.streams.pop(stream_id, None)
        if stream is None:
            return
        if reason == Reason.ENHANCE_YOUR_CALM:
            stream.lose(error_of(Status(Code.RESOURCE_EXHAUSTED, "The replica has too much to do.")))
        else:
            is_unseen = reason == Reason.REFUSED_STREAM
            stream.lose(ConnectionCut(f"The replica broke off its answer (code {reason})."), is_unseen=is_unseen)

    def _on_settings(self, payload: bytes) -> None:
        for name, value in frames.settings_in(payload):
            if name == Setting.MAX_CONCURRENT_STREAMS:
                self._most_streams = value
            elif name == Setting.MAX_FRAME_SIZE:
                self._frame_bytes = value
            elif name == Setting.INITIAL_WINDOW_SIZE:
                for stream in self.streams.values():
                    stream.send_window += value - self._stream_window
                self._stream_window = value
        self._write(frames.frame(Kind.SETTINGS, Flag.ACK, 0, b""))
        for stream in [stream for stream in self.streams.values() if stream.unsent]:
            self._write(self._sendable(stream))
        if not self.greeted.done():
            self.greeted.set_result(None)

    def _on_goaway(self, payload: bytes) -> None:
        """It ends the calls up to the one it names, and has not looked at later ones."""
        self._is_leaving = True
        last = int.from_bytes(payload[:4], "big") & 0x7FFFFFFF
        unseen = [stream for id, stream in self.streams.items() if id > last]
        for stream in unseen:
            del self.streams[stream.id]
        for stream in unseen:
            stream.lose(ConnectionCut("The replica takes no more calls on this connection."), is_unseen=True)
        if not self.streams and self._transport is not None:
            self._transport.close()

    def _sendable(self, stream: Stream) -> bytes:
        """What the windows let out of what it has to say, in frames."""
        sent = []
        while stream.unsent and (room := min(self._send_window, stream.send_window, self._frame_bytes)) > 0:
            piece, stream.unsent = stream.unsent[:room], stream.unsent[room:]
            self._send_window -= len(piece)
            stream.send_window -= len(piece)
            sent.append(frames.frame(Kind.DATA, 0 if stream.unsent else Flag.END_STREAM, stream.id, piece))
        return sent[0] if len(sent) == 1 else b"".join(sent)

    def _write(self, data: bytes) -> None:
        if data and self._transport is not None:
            self._transport.write(data)

    def __repr__(self) -> str:
        state = "closed" if self._transport is None else "leaving" if self._is_leaving else "open"
        return f"<Http2Connection {state}, {len(self.streams)} calls>"
