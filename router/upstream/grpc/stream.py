"""One call on a connection: its message out, messages in, and how much of either may flow. Knows gRPC's framing of
messages and HTTP/2's windows; knows no sockets and nothing of what messages say."""

from collections import deque
from typing import TYPE_CHECKING

from router.core import Headers
from router.errors import BadAnswer, UpstreamError
from router.upstream.grpc.frames import WINDOW_BYTES
from router.upstream.grpc.statuses import Status, status_in

if TYPE_CHECKING:
    from router.upstream.grpc.connection import Http2Connection
    from router.upstream.grpc.exchange import GrpcExchange

# Of what was read, so much is told at once.
UPDATE_BYTES = WINDOW_BYTES // 2
MAX_MESSAGE_BYTES = 64 * 2**20
PREFIX_BYTES = 5


class Stream:
    """The call of that `index` of an exchange, which hears of messages and of the end; while it is paused what comes
    is held, at most a window of it. `unsent` is what the windows have not let out yet."""

    __slots__ = (
        "_connection",
        "_ending",
        "_held",
        "_is_answered",
        "_is_paused",
        "_num_needed",
        "_num_unread",
        "_part",
        "exchange",
        "id",
        "index",
        "send_window",
        "unsent",
    )

    def __init__(
        self, connection: "Http2Connection", id: int, send_window: int, exchange: "GrpcExchange", index: int
    ) -> None:
        self.id = id
        self.index = index
        self.exchange: GrpcExchange | None = exchange
        self.send_window = send_window
        self.unsent = memoryview(b"")
        self._connection = connection
        self._part = bytearray()
        self._num_needed = PREFIX_BYTES
        self._held: deque[bytes] = deque()
        self._ending: Status | None = None
        self._is_paused = self._is_answered = False
        self._num_unread = 0

    # for the exchange

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        while self._held and not self._is_paused and self.exchange is not None:
            self.exchange.on_message(self.index, self._held.popleft())
        if self._is_paused or self.exchange is None:
            return
        self._update()
        if self._ending is not None:
            self._end(self._ending)

    def abort(self) -> None:
        """Let go of it, in this turn of the loop; the replica is told."""
        self.exchange = None
        self._connection.drop(self)

    # for the connection

    def headers(self, fields: Headers, *, is_end: bool) -> None:
        """Its head, or what follows its messages. Raises BadAnswer."""
        if not self._is_answered and self.exchange is not None:
            self.exchange.has_begun = True
        status = status_in(fields, is_first=not self._is_answered)
        is_head, self._is_answered = not self._is_answered and not is_end, True
        if is_head and not status.code:
            if not self._is_paused and self.exchange is not None:
                self.exchange.on_head()
        elif is_end or is_head:
            self._finish(status)

    def take(self, payload: bytes, num_bytes: int) -> None:
        """What came, and how much of the window it took. Raises BadAnswer."""
        self._num_unread += num_bytes
        for message in self._messages(payload):
            if self._is_paused or self._held:
                self._held.append(message)
            elif self.exchange is not None:
                self.exchange.on_message(self.index, message)
        if not self._is_paused and self.exchange is not None and self._num_unread >= UPDATE_BYTES:
            self._update()

    def lose(self, error: UpstreamError, *, is_unseen: bool = False) -> None:
        """`is_unseen`: the replica has not begun with it."""
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.on_lost(error, is_unseen=is_unseen)

    def _messages(self, payload: bytes) -> list[bytes]:
        """Those that this payload completes."""
        data, end = payload, len(payload)
        is_whole = payload[:1] == b"\0" and int.from_bytes(payload[1:PREFIX_BYTES], "big") == end - PREFIX_BYTES
        if is_whole and not self._part:  # as most are
            return [payload[PREFIX_BYTES:]]
        if self._part:
            self._part += payload  # a long message comes in thousands of pieces
            if len(self._part) < self._num_needed:
                return []
            data = bytes(self._part)
        found, at, end = [], 0, len(data)
        self._num_needed = PREFIX_BYTES
        while end - at >= PREFIX_BYTES:
            length = int.from_bytes(data[at + 1 : at + PREFIX_BYTES], "big")
            if data[at] or length > MAX_MESSAGE_BYTES:
                how = "compressed, which nobody asked for" if data[at] else f"of {length} bytes"
                raise BadAnswer(f"The replica sent a message {how}.")
            stop = at + PREFIX_BYTES + length
            if stop > end:
                self._num_needed = stop - at
                break
            found.append(data[at + PREFIX_BYTES : stop])
            at = stop
        self._part = bytearray(data[at:])
        return found

    def _finish(self, status: Status) -> None:
        if self._is_paused or self._held:
            self._ending = status
        else:
            self._end(status)

    def _end(self, status: Status) -> None:
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.on_end(self.index, status)

    def _update(self) -> None:
        if self._num_unread and self._ending is None:
            self._connection.allow(self, self._num_unread)
            self._num_unread = 0

    def __repr__(self) -> str:
        what = "let go of" if self.exchange is None else "paused" if self._is_paused else "open"
        return f"<Stream {self.id} {what}, {len(self.unsent)} bytes unsent>"
