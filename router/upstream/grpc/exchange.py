"""One attempt on its way: its calls, and the answer that they make. Knows calls and a sink; knows nothing of frames or
of what bodies say."""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from router.core import Attempt, Headers
from router.errors import UpstreamError, UpstreamStatus
from router.openai import retry_after
from router.ports import Sink
from router.upstream.grpc import hpack
from router.upstream.grpc.answering import Plan
from router.upstream.grpc.answers import JSON
from router.upstream.grpc.statuses import Status, error_of

if TYPE_CHECKING:
    from router.upstream.grpc.connection import Http2Connection
    from router.upstream.grpc.stream import Stream

# The relay ends a request at its deadline; the replica shall not do so just before.
GRACE_S = 1.0
MOST_TIMEOUT_S = 99_999
_INDEXED_POST, _INDEXED_HTTP, _INDEXED_HTTPS = b"\x83", b"\x86", b"\x87"
_OF_HTTP = frozenset("content-type content-length accept accept-encoding connection host te user-agent".split())
_VALUE = re.compile(r"[\x20-\x7e]*")


class GrpcExchange:
    """`ports.Exchange`: on one connection or, after a resend, two. `has_begun`: something of an answer has come."""

    __slots__ = (
        "_has_head",
        "_is_paused",
        "_is_reused",
        "_num_open",
        "_plan",
        "_resend",
        "_streams",
        "_was_resent",
        "attempt",
        "has_begun",
        "sink",
    )

    def __init__(self, attempt: Attempt, sink: Sink, plan: Plan, resend: Callable[["GrpcExchange"], None]) -> None:
        self.attempt = attempt
        self.sink: Sink | None = sink
        self.has_begun = False
        self._plan = plan
        self._resend = resend
        self._streams: list[Stream] = []
        self._num_open = len(plan.calls)
        self._is_reused = self._was_resent = self._is_paused = self._has_head = False

    def start(self, connection: "Http2Connection", left_s: float | None, *, is_reused: bool) -> None:
        """Send all calls. `left_s`: until the request's deadline."""
        self._is_reused = is_reused
        for index, call in enumerate(self._plan.calls):
            if self.sink is None:
                return
            if not connection.is_usable:
                self.fail(error_of(Status(8, "The replica takes no more calls at once.")))
                return
            block = head_block(self.attempt, call.method, left_s)
            stream = connection.call(block, call.message, self, index)
            self._streams.append(stream)
            if self._is_paused:
                stream.pause()

    def pause(self) -> None:
        self._is_paused = True
        for stream in self._streams:
            stream.pause()

    def resume(self) -> None:
        self._is_paused = False
        for stream in self._streams:
            if not self._is_paused:
                stream.resume()

    def abort(self) -> None:
        """Let go of the replica, in this turn of the loop."""
        self.sink = None
        streams, self._streams = self._streams, []
        for stream in streams:
            if stream.exchange is not None:
                stream.abort()

    def fail(self, error: UpstreamError) -> None:
        sink = self.sink
        self.abort()
        if sink is None:
            return
        if isinstance(error, UpstreamStatus) and not self._has_head:
            wait = retry_after(error)
            more = () if wait is None else (("retry-after", wait),)
            sink.on_head(error.status, (*JSON, *more), len(error.body))
            sink.on_body(error.body, None)
            sink.on_end()
        else:
            sink.on_error(error)

    # for its streams

    def on_head(self) -> None:
        """The replica has begun to answer. A whole answer has no head before its end: its length is not known."""
        if self._plan.answering.is_stream and not self._has_head:
            self._head(None)

    def on_message(self, index: int, message: bytes) -> None:
        try:
            payload = self._plan.answering.take(index, message)
        except UpstreamError as error:
            self.fail(error)
            return
        if payload and not self._has_head:
            self._head(None)
        if payload and self.sink is not None:
            self.sink.on_body(payload, None)

    def on_end(self, index: int, status: Status) -> None:
        if status.code:
            self.fail(error_of(status))
            return
        self._num_open -= 1
        if not self._num_open:
            self._finish()

    def on_lost(self, error: UpstreamError, *, is_unseen: bool) -> None:
        """The connection broke: once more on a fresh one if nothing can have been answered, else an error."""
        may_resend = (is_unseen or self._is_reused) and not (self.has_begun or self._was_resent)
        if not may_resend or self.sink is None or len(self._plan.calls) > 1:
            self.fail(error)
            return
        self._streams, self._was_resent = [], True
        self._resend(self)

    def _finish(self) -> None:
        try:
            payload = self._plan.answering.end()
        except UpstreamError as error:
            self.fail(error)
            return
        if not self._has_head:
            self._head(len(payload))
        if payload and self.sink is not None:
            self.sink.on_body(payload, None)
        sink, self.sink = self.sink, None
        self._streams = []
        if sink is not None:
            sink.on_end()

    def _head(self, length: int | None) -> None:
        self._has_head = True
        if self.sink is not None:
            self.sink.on_head(200, self._plan.answering.headers, length)

    def __repr__(self) -> str:
        state = "let go of" if self.sink is None else "paused" if self._is_paused else "under way"
        return f"<GrpcExchange {self.attempt.request_id} {state}, {self._num_open} calls>"


def head_block(attempt: Attempt, method: str, left_s: float | None) -> bytes:
    """A call's headers: most often what the last call had, but for the request's id and time left."""
    block = _common_block(attempt.replica.spec.url, method, attempt.headers) + hpack.field(
        "x-request-id", attempt.request_id
    )
    if left_s is None or left_s > MOST_TIMEOUT_S:
        return block
    return block + hpack.field("grpc-timeout", f"{max(1, round((left_s + GRACE_S) * 1e3))}m")


@lru_cache(maxsize=1024)
def _common_block(url: str, method: str, headers: Headers) -> bytes:
    parts = urlsplit(url)
    scheme = _INDEXED_HTTPS if parts.scheme == "grpcs" else _INDEXED_HTTP
    fields = [(":path", method), (":authority", parts.netloc), ("te", "trailers"), ("content-type", "application/grpc")]
    fields += [(name, value) for name, value in headers if _is_metadata(name, value)]
    return _INDEXED_POST + scheme + b"".join(hpack.field(name, value) for name, value in fields)


def _is_metadata(name: str, value: str) -> bool:
    """gRPC's own names, HTTP's framing and values that are not ASCII are no metadata."""
    is_name = name not in _OF_HTTP and not name.startswith(("grpc-", ":")) and not name.endswith("-bin")
    return is_name and _VALUE.fullmatch(value) is not None
