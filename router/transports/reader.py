"""Client bytes to whole HTTP/1.1 requests, in order, or a refusal. Knows framing and limits; knows no routes.

A refusal ends the connection: what follows it cannot be framed with certainty. Requests that came before it in the
same read are still answered, so both wait in one line.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import httptools

from router.core import Headers
from router.errors import (
    BodyTooLarge,
    HeadTooLarge,
    InvalidRequest,
    MethodNotAllowed,
    PointsmanError,
    UnsupportedEncoding,
)
from router.heads import KnownHeads, RequestHead, path_of, without_length
from router.transports.inflate import Inflater, inflater_for

# Of a head, and of trailers or chunk extensions between two pieces of a body.
MAX_HEAD_BYTES = 64 * 1024


class Message(NamedTuple):
    """One request as received."""

    head: RequestHead
    body: bytes


@dataclass(frozen=True, slots=True)
class Refusal:
    error: PointsmanError


class RequestReader:
    """Feed it what the socket brings; take from `waiting`. `on_expect` is called when a client awaits 100 Continue."""

    def __init__(self, max_body_bytes: int, on_expect: Callable[[], None], known: KnownHeads[RequestHead]) -> None:
        self.waiting: deque[Message | Refusal] = deque()
        self.is_mid_message = False
        self._max_body_bytes = max_body_bytes
        self._on_expect = on_expect
        self._known = known
        self._known_head: RequestHead | None = None
        self._num_missing_bytes = 0
        self._pieces: list[bytes] = []
        self._is_broken = False
        self._begin_stream()

    @property
    def is_in_head(self) -> bool:
        return self.is_mid_message and not self._is_head_seen

    @property
    def num_bytes(self) -> int:
        """Body bytes that wait."""
        return sum(len(item.body) for item in self.waiting if isinstance(item, Message))

    def feed(self, data: bytes) -> None:
        if self._known_head is not None:
            data = self._feed_body(self._known_head, data)
        while data and not self.is_mid_message and not self._is_broken:
            found = self._known.find(data)
            if found is None or found.length > self._max_body_bytes:
                break
            start, end = found.body_at, found.body_at + found.length
            if end <= len(data):
                self.waiting.append(Message(found.head, data[start:end]))
                data = data[end:]
                continue
            self.is_mid_message = self._is_head_seen = True
            self._known_head, self._num_missing_bytes, self._pieces = found.head, end - len(data), [data[start:]]
            data = b""
        if data and not self._is_broken:
            self._feed_parser(data)

    def _feed_body(self, head: RequestHead, data: bytes) -> bytes:
        """Body bytes behind a known head; what is left over belongs to the next request."""
        missing = self._num_missing_bytes
        if len(data) < missing:
            self._pieces.append(data)
            self._num_missing_bytes = missing - len(data)
            return b""
        rest = data[missing:]
        body = data[:missing] if rest else data
        if self._pieces:
            body = b"".join((*self._pieces, body))
        self._known_head = None
        self.is_mid_message = self._is_head_seen = False
        self.waiting.append(Message(head, body))
        return rest

    def _feed_parser(self, data: bytes) -> None:
        self._overhead_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if not self._is_broken:
                self._resume_after_upgrade(data, upgrade.args[0])
        except httptools.HttpParserError as error:
            self._refuse(InvalidRequest(f"The request is not valid HTTP: {error}."))
        if self.is_mid_message and self._overhead_bytes > MAX_HEAD_BYTES:
            self._refuse_head()

    # httptools' callbacks

    def on_message_begin(self) -> None:
        self.is_mid_message = True
        self._is_head_seen = False
        self._target = b""
        self._headers: list[tuple[str, str]] = []
        self._pieces = []
        self._inflater: Inflater | None = None
        self._num_body_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_head_seen:  # later ones are trailers
            self._headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        self._is_head_seen = True
        self._overhead_bytes = 0
        if not self._is_broken:
            self._check_head()

    def on_body(self, payload: bytes) -> None:
        self._overhead_bytes = 0
        self._num_body_bytes += len(payload)
        if self._num_body_bytes > self._max_body_bytes:
            self._refuse_body()
        elif not self._is_broken:
            self._take(payload)

    def on_message_complete(self) -> None:
        self.is_mid_message = False
        self._overhead_bytes = 0
        if self._is_broken or self._is_upgrade_with_body():
            return
        if self._inflater is not None and not self._has_inflated(self._inflater):
            return
        body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        head = RequestHead(
            method=self._parser.get_method().decode("latin-1"),
            target=self._target,
            version=self._parser.get_http_version(),
            headers=self._passed_headers(),
            keeps_alive=bool(self._parser.should_keep_alive()),
            path=path_of(self._target, self._headers),
        )
        self.waiting.append(Message(head, body))
        self._is_head_seen = False

    # the rest

    def _begin_stream(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._overhead_bytes = 0
        self._is_head_seen = False

    def _check_head(self) -> None:
        fields, version = dict(self._headers), self._parser.get_http_version()
        num_hosts = sum(name == "host" for name, _ in self._headers)
        if version not in ("1.0", "1.1"):
            self._refuse(InvalidRequest(f"The request must be HTTP/1.1, not HTTP/{version}."))
        elif self._parser.get_method() == b"CONNECT":
            self._refuse(MethodNotAllowed("CONNECT is not served here."))  # what follows is no HTTP to its client
        elif len(self._target) + sum(len(name) + len(value) for name, value in self._headers) > MAX_HEAD_BYTES:
            self._refuse_head()
        elif num_hosts > 1 or (num_hosts == 0 and version == "1.1"):
            self._refuse(InvalidRequest("The request must have one Host header."))
        elif int(fields.get("content-length", "0")) > self._max_body_bytes:
            self._refuse_body()
        elif self._can_decode() and fields.get("expect", "").lower() == "100-continue" and not self.waiting:
            self._on_expect()

    def _can_decode(self) -> bool:
        try:
            self._inflater = inflater_for(tuple(self._headers), self._max_body_bytes)
        except UnsupportedEncoding as error:
            self._refuse(error)
        return not self._is_broken

    def _take(self, payload: bytes) -> None:
        try:
            self._pieces.append(payload if self._inflater is None else self._inflater.feed(payload))
        except InvalidRequest as error:
            self._refuse(error)

    def _has_inflated(self, inflater: Inflater) -> bool:
        try:
            inflater.end()
        except InvalidRequest as error:
            self._refuse(error)
        return not self._is_broken

    def _passed_headers(self) -> Headers:
        """As the replica may see them: it gets the body as we understood it."""
        headers = without_length(self._headers)
        return headers if self._inflater is None else tuple(pair for pair in headers if pair[0] != "content-encoding")

    def _refuse_head(self) -> None:
        self._refuse(HeadTooLarge(f"The request's head is over {MAX_HEAD_BYTES} bytes."))

    def _refuse_body(self) -> None:
        self._refuse(BodyTooLarge(f"The body is over the limit of {self._max_body_bytes} bytes."))

    def _refuse(self, error: PointsmanError) -> None:
        if not self._is_broken:
            self._is_broken = True
            self._pieces = []
            self.waiting.append(Refusal(error))

    def _is_upgrade_with_body(self) -> bool:
        """Has the parser stopped before a body? An `Upgrade` that no `Connection` names stops nothing."""
        names = {name for name, _ in self._headers}
        has_body = bool(names & {"content-length", "transfer-encoding"})
        return bool(self._parser.should_upgrade()) and has_body and not self._pieces

    def _resume_after_upgrade(self, data: bytes, offset: int) -> None:
        """The parser stops at an offer to upgrade (`h2c`) and leaves a body unread. We decline the offer: the same
        head without it goes through a fresh parser, so that the body is framed as any other."""
        rest = data[offset:]
        has_body = self._is_upgrade_with_body()
        method, version = self._parser.get_method(), self._parser.get_http_version()
        # Not `expect`: it has had its answer.
        kept = [item for item in self._headers if item[0] not in ("upgrade", "connection", "expect")]
        kept.append(("connection", "keep-alive" if self._parser.should_keep_alive() else "close"))
        self._begin_stream()
        if has_body:
            head = b"%s %s HTTP/%s\r\n" % (method, self._target, version.encode())
            head += "".join(f"{name}: {value}\r\n" for name, value in kept).encode("latin-1") + b"\r\n"
            rest = head + rest
        if rest:
            self._feed_parser(rest)
