"""`ports.Reply` on the way of a response to its client: its end waits until it is stored, and its events go on a tape
as well. Knows when, and nothing of what is told."""

from collections.abc import Callable

from router.core import Headers, Outcome
from router.headers import is_event_stream
from router.ports import Flow, Reply


class Held:
    """Passes a stream on but for its end, and holds back an answer that is whole: `release` lets them go.

    `leaving` is what a client that leaves meanwhile is heard by."""

    __slots__ = ("_body", "_ending", "_head", "_leaving", "_reply", "is_stream", "status")

    def __init__(self, reply: Reply, leaving: Flow) -> None:
        self._reply = reply
        self._leaving = leaving
        self._head: tuple[int, Headers, Headers] = (0, (), ())
        self._body = b""
        self._ending: tuple[Outcome, bool] | None = None
        self.status = 0
        self.is_stream = False

    # ports.Reply

    def bind(self, flow: Flow) -> None:
        self._reply.bind(flow)

    def head(self, status: int, headers: Headers, own: Headers = (), length: int | None = None) -> None:
        self.status, self.is_stream = status, is_event_stream(headers)
        if self.is_stream:
            self._reply.head(status, headers, own, length)
        else:
            self._head = status, headers, own

    def write(self, payload: bytes, framed: bytes | None = None) -> None:
        if self.is_stream:
            self._reply.write(payload)
        else:
            self._body += payload

    def end(self, outcome: Outcome, *, is_complete: bool) -> None:
        self._ending = outcome, is_complete
        self._reply.bind(self._leaving)

    # for who stores it

    def release(self, rest: bytes | None) -> None:
        """The end of a stream, or another body than the one that is held; once, and only what has come to its end."""
        if self._ending is None:
            return
        (outcome, is_complete), self._ending = self._ending, None
        if self.is_stream:
            self._reply.write(rest or b"")
        else:
            body = self._body if rest is None else rest
            self._reply.head(*self._head, len(body))
            self._reply.write(body)
        self._reply.end(outcome, is_complete=is_complete)


class Taped:
    """Tells a stream to `add`, and to its client for as long as there is one; `on_left` hears it leave."""

    __slots__ = ("_add", "_flow", "_is_paused", "_on_left", "_reply")

    def __init__(self, reply: Reply | None, add: Callable[[bytes], None], on_left: Callable[[], None]) -> None:
        self._reply = reply
        self._add = add
        self._on_left = on_left
        self._flow: Flow | None = None
        self._is_paused = False
        if reply is not None:
            reply.bind(self)

    # ports.Reply

    def bind(self, flow: Flow) -> None:
        self._flow = flow

    def head(self, status: int, headers: Headers, own: Headers = (), length: int | None = None) -> None:
        if self._reply is not None:
            self._reply.head(status, headers, own, length)

    def write(self, payload: bytes, framed: bytes | None = None) -> None:
        self._add(payload)
        if self._reply is not None:
            self._reply.write(payload)

    def end(self, outcome: Outcome, *, is_complete: bool) -> None:
        reply, self._reply = self._reply, None
        self._flow = None
        if reply is not None:
            reply.end(outcome, is_complete=is_complete)

    # ports.Flow, of the client

    def pause(self) -> None:
        self._is_paused = True
        if self._flow is not None:
            self._flow.pause()

    def resume(self) -> None:
        self._is_paused = False
        if self._flow is not None:
            self._flow.resume()

    def gone(self) -> None:
        """Nobody waits for it now: it goes on, and as fast as it can."""
        self._reply = None
        if self._is_paused:
            self.resume()
        self._on_left()
