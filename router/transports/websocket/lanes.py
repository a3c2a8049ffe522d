"""The streams of one socket in OpenAI's WebSocket mode: what is asked for on each, in order, and its answer as
messages. Knows events and the way back; knows nothing of frames or of what serves a request."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from router.core import Headers, Outcome
from router.errors import BadAnswer, ConnectionCut, PointsmanError
from router.headers import is_event_stream
from router.ports import Flow
from router.transports import chunks
from router.transports.chunks import Events
from router.transports.dialects.responses_tell import CANCELLED, last_event
from router.transports.responses.following import is_last
from router.transports.responses.states import ResponseState
from router.transports.responses.turn import data_of
from router.transports.turns import Turns
from router.transports.websocket import response_words as words


@dataclass(eq=False, slots=True)
class Lane:
    """Requests of one `stream_id` (None: those without one)."""

    stream_id: str | None
    turns: Turns["words.Create | words.Resume"]
    answer: "LaneAnswer | None" = None


class LaneAnswer:
    """`ports.Reply` of one response on a lane: its events as messages. `send` takes them; while `is_paused()` none
    shall come. `followed` is the id of one that goes on without this."""

    __slots__ = (
        "_body",
        "_events",
        "_is_paused",
        "_send",
        "_status",
        "_stream_id",
        "flow",
        "followed",
        "is_over",
        "num_told",
        "response",
    )

    def __init__(
        self, send: Callable[[bytes], None], stream_id: str | None, is_paused: Callable[[], bool], followed: str | None
    ) -> None:
        self._send = send
        self._stream_id = stream_id
        self._is_paused = is_paused
        self.followed = followed
        self._events = Events()
        self._body: list[bytes] | None = None
        self._status = 0
        self.flow: Flow | None = None
        self.response: dict[str, Any] = {}
        self.num_told = 0
        self.is_over = False

    # ports.Reply

    def bind(self, flow: Flow) -> None:
        self.flow = flow
        if self._is_paused():
            flow.pause()

    def head(self, status: int, headers: Headers, own: Headers = (), length: int | None = None) -> None:
        self._status = status
        self._body = None if is_event_stream(headers) else []

    def write(self, payload: bytes, framed: bytes | None = None) -> None:
        if self._body is not None:
            self._body.append(payload)
            return
        for found in self._events.feed(payload):
            self.tell(found)

    def end(self, outcome: Outcome, *, is_complete: bool) -> None:
        self.flow = None
        if self._body is not None and is_complete:
            self._pass_whole(b"".join(self._body))
        elif not self.is_over:
            self.fail(ConnectionCut("The answer was cut before its end."))

    # for the talk

    @property
    def id(self) -> str | None:
        """The response's, once its client knows it."""
        return self.followed or self.response.get("id")

    def tell(self, found: bytes) -> None:
        """An event of it; the last ends it."""
        if self.is_over:
            return
        if not self.num_told:
            self.response = msgspec.json.decode(found).get("response") or {}
        self.num_told += 1
        self._send(words.event(found, self._stream_id))
        self.is_over = is_last(found)

    def fail(self, error: PointsmanError) -> None:
        self._tell(words.failed(error, self._stream_id))

    def cancel(self) -> None:
        """It ends here, and says so."""
        response = self.response | {"status": ResponseState.CANCELLED, "error": CANCELLED}
        last = data_of(last_event(response, ResponseState.CANCELLED, self.num_told))
        self._tell(words.event(last, self._stream_id))
        self.leave()

    def leave(self) -> None:
        """Nobody wants the rest: the upstream is detached before this returns."""
        flow, self.flow = self.flow, None
        self.is_over = True
        if flow is not None:
            flow.gone()

    # the rest

    def _pass_whole(self, body: bytes) -> None:
        """An answer that is no stream: an error, or what an engine that does not stream says."""
        try:
            chunk = chunks.decode(body)
        except PointsmanError as error:
            self.fail(error)
            return
        if self._status < 400:
            self.fail(BadAnswer("The replica's answer is not a stream."))
        else:
            failure = chunk.failure or chunks.Failure(message=body.decode("utf-8", "replace"))
            self._tell(words.failed_as(self._status, msgspec.to_builtins(failure), self._stream_id))

    def _tell(self, message: bytes) -> None:
        if not self.is_over:
            self.is_over = True
            self._send(message)

    def __repr__(self) -> str:
        return f"<LaneAnswer {self.id} {self.num_told} events{' over' if self.is_over else ''}>"
