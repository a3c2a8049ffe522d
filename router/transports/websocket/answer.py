"""`ports.Reply` of one request on a socket: a stream's events as messages, as they come. Knows OpenAI's SSE and our
words; knows nothing of sessions."""

from collections.abc import Callable

import msgspec

from router.core import Headers, Outcome
from router.errors import BadAnswer, ConnectionCut, PointsmanError
from router.headers import find
from router.openai import error_object
from router.ports import Flow
from router.transports import chunks
from router.transports.chunks import Events
from router.transports.websocket import words

Send = Callable[[bytes], None]
Heard = Callable[[bytes], None]

# Checks that an event is JSON, and makes nothing of it.
_JSON = msgspec.json.Decoder(msgspec.Raw)


class Answer:
    """`send` takes messages to the client; `heard`, where it is given, each event's data; `on_end` is told once."""

    __slots__ = (
        "_body",
        "_events",
        "_flow",
        "_heard",
        "_is_done",
        "_is_over",
        "_on_end",
        "_quoted",
        "_send",
        "_status",
        "id",
    )

    def __init__(self, id: str, send: Send, on_end: Callable[[], None], heard: Heard | None = None) -> None:
        self.id = id
        self._send = send
        self._on_end = on_end
        self._heard = heard
        self._quoted = msgspec.json.encode(id)
        self._events = Events()
        self._body: list[bytes] | None = None
        self._status = 0
        self._is_done = False
        self._is_over = False
        self._flow: Flow | None = None

    # ports.Reply

    def bind(self, flow: Flow) -> None:
        self._flow = flow

    def head(self, status: int, headers: Headers, own: Headers = (), length: int | None = None) -> None:
        self._status = status
        if status >= 400 or not (find(headers, "content-type") or "").startswith("text/event-stream"):
            self._body = []
        if status < 400:
            told = dict(own)
            request_id, replica = told.get("x-request-id", ""), told.get("x-pointsman-replica")
            self._send(words.started(self.id, request_id, replica, told.get("x-pointsman-reason")))

    def write(self, payload: bytes, framed: bytes | None = None) -> None:
        if self._body is not None:
            self._body.append(payload)
            return
        for found in self._events.feed(payload):
            self._pass(found)

    def end(self, outcome: Outcome, *, is_complete: bool) -> None:
        self._flow = None
        if self._body is not None and is_complete and not self._is_over:
            self._pass_whole(b"".join(self._body))
        if not self._is_over:
            self._finish(is_complete)
        self._on_end()

    # for the talk

    @property
    def flow(self) -> Flow | None:
        """The way back, while the answer is under way."""
        return self._flow

    def stop(self) -> None:
        """The client wants no more of it: the upstream is detached before this returns."""
        flow, self._flow = self._flow, None
        self._is_over = True
        if flow is not None:
            flow.gone()
            self._on_end()

    def fail(self, error: PointsmanError) -> None:
        self._tell_error(error_object(error), error.status)

    # the rest

    def _pass(self, found: bytes) -> None:
        if self._is_over:
            return
        if found == chunks.DONE:
            self._is_done = True
            return
        if found.startswith(b'{"error"') and (failure := chunks.decode(found).failure) is not None:
            self._tell_error(msgspec.to_builtins(failure), None)
            return
        try:
            _JSON.decode(found)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.fail(BadAnswer("The replica's stream has an event that is not JSON."))
            return
        if self._heard is not None:
            self._heard(found)
        self._send(words.event(self._quoted, found))

    def _pass_whole(self, body: bytes) -> None:
        """An answer that is no stream: an error, or what an engine that does not stream says."""
        try:
            chunk = chunks.decode(body)
        except PointsmanError as error:
            self.fail(error)
            return
        if self._status >= 400:
            self._tell_error(msgspec.to_builtins(chunk.failure or chunks.Failure(message=body.decode())), self._status)
            return
        self._pass(body)
        self._is_done = True

    def _finish(self, is_complete: bool) -> None:
        self._is_over = True
        if self._is_done and is_complete:
            self._send(words.done(self.id))
        else:
            self.fail(ConnectionCut("The answer was cut before its end."))

    def _tell_error(self, error: object, status: int | None) -> None:
        self._is_over = True
        self._send(words.failed(self.id, None, error, status))

    def __repr__(self) -> str:
        return f"<Answer {self.id} {'over' if self._is_over else 'under way'}>"
