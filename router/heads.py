"""HTTP/1.1 heads that came before, recognised by their bytes. Knows heads and lengths; knows no sockets and no bodies.

On a kept connection the same head comes again and again with another length: it is validated and taken apart once, by
httptools, and from then on a body behind it is framed by its length alone. Whatever is out of the ordinary (chunks, an
upgrade, an `Expect`, two lengths, a fault) is not recognised, and goes the long way through a parser.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import httptools
import msgspec

from router.core import Headers, Surface

MAX_KNOWN_BYTES = 8 * 1024
MAX_KNOWN = 1024
# Before the path of a request whose client would rather come back for its answer than wait; in no client's own path.
LATER = "/?"
_SURFACES = frozenset(surface.value for surface in Surface)

H = TypeVar("H")


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A request's head, without its length. `target` is the raw request target, `path` that of `path_of`."""

    method: str
    target: bytes
    version: str
    headers: Headers
    keeps_alive: bool
    path: str


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """An answer's head, without its length. `is_chunked`: the body has none and comes in chunks. `idle_s` is what
    `keep_alive_s` reads in it."""

    status: int
    headers: Headers
    keeps_alive: bool
    is_chunked: bool
    idle_s: float | None = None


class Found(msgspec.Struct, Generic[H], frozen=True, gc=False):
    """A recognised head, the length that it gives its body, and where that begins in the data."""

    head: H
    length: int
    body_at: int


class KnownHeads(Generic[H]):
    """Distinct heads, without what varies. `learn` makes one from its bytes, with the length that the parser read in
    them, or None where it is not ordinary."""

    def __init__(self, learn: Callable[[bytes], tuple[H, int] | None]) -> None:
        self._learn = learn
        self._heads: dict[bytes, H | None] = {}
        self._before = self._behind = self._whole = b""
        self._last: H | None = None
        self._last_whole: H | None = None

    def find(self, data: bytes) -> Found[H] | None:
        """The head that the data begins with, where it is whole and ordinary."""
        # Most often it is the last one again, with another length or, as before streams, with none.
        before, last = self._before, self._last
        if last is not None and data.startswith(before):
            start, stop = len(before), data.find(b"\r", len(before))
            digits = data[start:stop]
            if len(digits) < 16 and digits.isdigit() and data.startswith(self._behind, stop):
                return Found(last, int(digits), stop + len(self._behind))
        if self._last_whole is not None and data.startswith(self._whole):
            return Found(self._last_whole, 0, len(self._whole))
        return self._look_up(data)

    def _look_up(self, data: bytes) -> Found[H] | None:
        end = data.find(b"\r\n\r\n", 0, MAX_KNOWN_BYTES)
        if end < 0:
            return None
        start, stop = _length_digits(data, end)
        if stop < 0:
            return None
        key, length = data[:start] + data[stop:end], int(data[start:stop] or b"0")
        try:
            head = self._heads[key]
        except KeyError:
            head = self._remember(key, data[: end + 4], length)
        if head is None:
            return None
        if start < stop:
            self._before, self._behind, self._last = data[:start], data[stop : end + 4], head
        else:
            self._whole, self._last_whole = data[: end + 4], head
        return Found(head, length, end + 4)

    def _remember(self, key: bytes, data: bytes, length: int) -> H | None:
        if len(self._heads) >= MAX_KNOWN:
            self._heads.clear()
        learned = self._learn(data)
        # A length that we did not find, or not as the parser did, must never frame a body.
        head = self._heads[key] = learned[0] if learned is not None and learned[1] == length else None
        return head


def _length_digits(data: bytes, end: int) -> tuple[int, int]:
    """Where the digits of the content length are in a head that ends at `end`; (end, end) where it gives none, and
    a negative stop where they are anything but digits on a line of their own."""
    at = data.find(b"ontent-Length: ", 0, end)
    if at < 0:
        at = data.find(b"ontent-length: ", 0, end)
        if at < 0:
            return end, end
    start, stop = at + 15, data.find(b"\r", at)
    is_line = data[at - 3 : at] in (b"\r\nC", b"\r\nc")
    return (start, stop) if is_line and 0 < stop - start < 16 and data[start:stop].isdigit() else (start, -1)


class _Parsed:
    """What httptools makes of one head, with nothing behind it."""

    def __init__(self, parser: Callable[["_Parsed"], Any], data: bytes) -> None:
        self.target = b""
        self.pairs: list[tuple[str, str]] = []
        self.is_whole = self.keeps_alive = False
        self.parser = parser(self)
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.is_whole = False

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.pairs]

    @property
    def length(self) -> int:
        return next((int(value) for name, value in self.pairs if name == "content-length"), 0)

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.pairs.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        self.is_whole = True
        self.keeps_alive = bool(self.parser.should_keep_alive())  # right only here: a head may be all of its message


_TIMEOUT = re.compile(r"\btimeout=([0-9]{1,6})\b", re.ASCII)
_SHARE_OF_TIMEOUT = 0.8
_UNUSUAL_IN_REQUESTS = frozenset(("transfer-encoding", "upgrade", "expect", "content-encoding"))


def learn_request(data: bytes) -> tuple[RequestHead, int] | None:
    """From a whole head. None where it is faulty or the last of its connection, or where its body is not simply as
    long as it says."""
    parsed = _Parsed(httptools.HttpRequestParser, data)
    names, parser = parsed.names, parsed.parser
    is_plain = parsed.keeps_alive and not _UNUSUAL_IN_REQUESTS.intersection(names) and names.count("host") == 1
    if not parsed.is_whole or not is_plain or parser.get_http_version() != "1.1" or parser.get_method() == b"CONNECT":
        return None
    head = RequestHead(
        method=parser.get_method().decode("latin-1"),
        target=parsed.target,
        version="1.1",
        headers=without_length(parsed.pairs),
        keeps_alive=True,
        path=path_of(parsed.target, parsed.pairs),
    )
    return head, parsed.length


def learn_answer(data: bytes) -> tuple[AnswerHead, int] | None:
    """From a whole head. None for interim and bodiless answers, and for bodies that end with the connection."""
    parsed = _Parsed(httptools.HttpResponseParser, data)
    fields = dict(parsed.pairs)
    is_chunked = fields.get("transfer-encoding", "").lower() == "chunked"
    status = parsed.parser.get_status_code()
    if not parsed.is_whole or status < 200 or status in (204, 304) or is_chunked == ("content-length" in fields):
        return None
    headers = without_length(parsed.pairs)
    return AnswerHead(status, headers, parsed.keeps_alive, is_chunked, keep_alive_s(headers)), parsed.length


def without_length(pairs: Iterable[tuple[str, str]]) -> Headers:
    return tuple(pair for pair in pairs if pair[0] != "content-length")


def keep_alive_s(headers: Headers) -> float | None:
    """How long the connection may idle before it is used again, by what the server says (`Keep-Alive: timeout=5`), less
    a share for the way; None where it says nothing."""
    for name, value in headers:
        if name == "keep-alive" and (found := _TIMEOUT.search(value)):
            return int(found[1]) * _SHARE_OF_TIMEOUT
    return None


def path_of(target: bytes, headers: Iterable[tuple[str, str]] = ()) -> str:
    """The target's path; of inference that `Prefer: respond-async` asks for, with LATER before it. Told by the path, it
    costs other requests nothing."""
    path = target.split(b"?", 1)[0].decode("latin-1")
    return LATER + path if path in _SURFACES and _prefers_later(headers) else path


def _prefers_later(headers: Iterable[tuple[str, str]]) -> bool:
    wishes = ",".join(value for name, value in headers if name == "prefer").split(",")
    return any(wish.split(";")[0].strip().lower() == "respond-async" for wish in wishes)
