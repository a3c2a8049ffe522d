"""One attempt on its way. Knows a connection and a sink; knows nothing of bytes."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from router.core import Attempt
from router.errors import UpstreamError
from router.ports import Sink

if TYPE_CHECKING:
    from router.upstream.connection import Connection


class HttpExchange:
    """`ports.Exchange`: one attempt, on one connection or, after a resend, two. `has_bytes`: of an answer."""

    __slots__ = ("_connection", "_is_reused", "_resend", "attempt", "has_bytes", "is_paused", "sink")

    def __init__(self, attempt: Attempt, sink: Sink, resend: Callable[["HttpExchange"], None]) -> None:
        self.attempt = attempt
        self.sink: Sink | None = sink
        self._resend = resend
        self._connection: Connection | None = None
        self._is_reused = self.has_bytes = self.is_paused = False

    def start(self, connection: "Connection", *, is_reused: bool) -> None:
        if self.sink is None:
            connection.abort()
            return
        self._connection, self._is_reused = connection, is_reused
        connection.send(self)
        if self.is_paused:
            connection.pause()

    def pause(self) -> None:
        self.is_paused = True
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        self.is_paused = False
        if self._connection is not None:
            self._connection.resume()

    def abort(self) -> None:
        """Detach and close, in this turn of the loop."""
        self.sink = None
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    def finish(self) -> None:
        self._connection = None
        sink, self.sink = self.sink, None
        if sink is not None:
            sink.on_end()

    def fail(self, error: UpstreamError) -> None:
        self._connection = None
        sink, self.sink = self.sink, None
        if sink is not None:
            sink.on_error(error)

    def lost(self, error: UpstreamError) -> None:
        """The connection broke: once more on a fresh one if nothing can have been answered, else an error."""
        if self._is_reused and not self.has_bytes and self.sink is not None:
            self._connection, self._is_reused = None, False
            self._resend(self)
        else:
            self.fail(error)
