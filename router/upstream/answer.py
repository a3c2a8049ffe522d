"""The framing of one answer: what has come of it, and whether it ended. Knows HTTP/1.1 framing; knows no sockets.

Behind a known head, a body of known length and chunks that come whole need no parser; all else goes through httptools.
What a read brought is noted by `feed` and handed over by `deliver`: the sink may abort the exchange at any call.
"""

import re

import httptools

from router.errors import BadAnswer
from router.heads import AnswerHead, Found, keep_alive_s, without_length
from router.upstream.exchange import HttpExchange

MAX_HEAD_BYTES = 64 * 1024


class SizedAnswer:
    """Behind a known head, a body as long as the head says."""

    __slots__ = ("_has_extra", "_head", "_is_head_delivered", "_length", "_missing", "_payload")

    ends_at_close = False

    def __init__(self, found: Found[AnswerHead]) -> None:
        self._head = found.head
        self._length = self._missing = found.length
        self._payload = b""
        self._is_head_delivered = self._has_extra = False

    @property
    def is_complete(self) -> bool:
        return self._missing == 0

    @property
    def is_reusable(self) -> bool:
        return self._missing == 0 and self._head.keeps_alive and not self._has_extra

    @property
    def idle_s(self) -> float | None:
        return self._head.idle_s

    def feed(self, data: bytes) -> None:
        if len(data) > self._missing:
            self._has_extra = True
            data = data[: self._missing]
        self._missing -= len(data)
        self._payload = data

    def deliver(self, exchange: HttpExchange) -> None:
        if not self._is_head_delivered and exchange.sink is not None:
            self._is_head_delivered = True
            exchange.sink.on_head(self._head.status, self._head.headers, self._length)
        if self._payload and exchange.sink is not None:
            exchange.sink.on_body(self._payload, None)
        self._payload = b""


class ChunkedAnswer:
    """Behind a known head, chunks. Reads of whole chunks are passed on with their framing; from the first other read
    on, a parser has the word."""

    __slots__ = ("_framed", "_head", "_is_head_delivered", "_is_last_seen", "_parsed", "_payload")

    ends_at_close = False

    def __init__(self, found: Found[AnswerHead]) -> None:
        self._head = found.head
        self._payload = self._framed = b""
        self._is_head_delivered = self._is_last_seen = False
        self._parsed: ParsedAnswer | None = None

    @property
    def is_complete(self) -> bool:
        return self._is_last_seen if self._parsed is None else self._parsed.is_complete

    @property
    def is_reusable(self) -> bool:
        if self._parsed is not None:
            return self._parsed.is_reusable and self._head.keeps_alive
        return self._is_last_seen and self._head.keeps_alive

    @property
    def idle_s(self) -> float | None:
        return self._head.idle_s

    def feed(self, data: bytes) -> None:
        """Raises BadAnswer."""
        if self._parsed is None and data:
            whole = whole_chunks(data)
            if whole is not None:
                self._payload, self._framed, self._is_last_seen = whole
                return
            self._parsed = ParsedAnswer.behind_head()
        if self._parsed is not None:
            self._parsed.feed(data)

    def deliver(self, exchange: HttpExchange) -> None:
        if not self._is_head_delivered and exchange.sink is not None:
            self._is_head_delivered = True
            exchange.sink.on_head(self._head.status, self._head.headers, None)
        if self._payload and exchange.sink is not None:
            exchange.sink.on_body(self._payload, self._framed)
            self._payload = b""
        if self._parsed is not None:
            self._parsed.deliver(exchange)


class ParsedAnswer:
    """Any answer, by httptools. Interim (1xx) heads are skipped."""

    __slots__ = (
        "_has_extra",
        "_head_bytes",
        "_headers",
        "_is_head_delivered",
        "_is_head_seen",
        "_keeps_alive",
        "_length",
        "_parser",
        "_pieces",
        "_status",
        "ends_at_close",
        "is_complete",
    )

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._status = 0
        self._length: int | None = None
        self._headers: list[tuple[str, str]] = []
        self._pieces: list[bytes] = []
        self._head_bytes = 0
        self._is_head_seen = self._is_head_delivered = self._has_extra = self._keeps_alive = False
        self.is_complete = False
        self.ends_at_close = False

    @classmethod
    def behind_head(cls) -> "ParsedAnswer":
        """For chunks whose head was read, and delivered, elsewhere."""
        answer = cls()
        answer.feed(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        answer._is_head_delivered = True
        return answer

    @property
    def is_reusable(self) -> bool:
        """Ended by its own framing, with nothing behind it, and the replica keeps the connection."""
        return self.is_complete and not self._has_extra and self._keeps_alive

    @property
    def idle_s(self) -> float | None:
        return keep_alive_s(tuple(self._headers))

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
        if self._is_head_seen and not self._is_head_delivered and exchange.sink is not None:
            self._is_head_delivered = True
            exchange.sink.on_head(self._status, without_length(self._headers), self._length)
        if self._pieces:
            payload = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
            self._pieces = []
            if exchange.sink is not None:
                exchange.sink.on_body(payload, None)

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
        fields = dict(self._headers)
        self._length = int(fields["content-length"]) if "content-length" in fields else None
        is_framed = self._length is not None or "transfer-encoding" in fields
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


Answer = SizedAnswer | ChunkedAnswer | ParsedAnswer

_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,8})\r\n")


def whole_chunks(data: bytes) -> tuple[bytes, bytes, bool] | None:
    """The payload of a read, the same with its framing less the last (empty) chunk, and whether that was there.

    None where a chunk is not whole, or bears an extension or trailers.
    """
    line, end = _SIZE_LINE.match(data), len(data)
    if line is not None and (size := int(line[1], 16)) and line.end() + size + 2 == end and data[-2:] == b"\r\n":
        return data[line.end() : -2], data, False  # one chunk a read is what most streams bring
    payloads: list[bytes] = []
    at = 0
    while at < end:
        line = _SIZE_LINE.match(data, at)
        if line is None:
            return None
        size, start = int(line[1], 16), line.end()
        if size == 0:
            is_end = data[start:] == b"\r\n"
            return (b"".join(payloads), data[:at], True) if is_end else None
        after = start + size + 2
        if after > end or data[after - 2 : after] != b"\r\n":
            return None
        payloads.append(data[start : after - 2])
        at = after
    return payloads[0] if len(payloads) == 1 else b"".join(payloads), data, False
