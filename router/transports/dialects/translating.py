"""`ports.Reply` between the proxy and a client that speaks another form than chat completions. Knows SSE and where an
answer stands; what each piece becomes is the `Teller`'s matter."""

from enum import Enum

from router.core import Headers, Outcome
from router.errors import BadAnswer, PointsmanError
from router.headers import JSON, is_event_stream
from router.ports import Flow, Reply, Teller
from router.transports import chunks
from router.transports.chunks import Events, Failure

MAX_WHOLE_BYTES = 32 * 2**20
# Of the engine's answer, not of ours.
_OF_BODY = frozenset(("content-type", "content-length", "content-encoding"))


class Form(Enum):
    """What the answer is, known with its head."""

    UNKNOWN = "no head yet"
    STREAM = "events, passed as they come"
    WHOLE = "one JSON object, or an error: held until it is whole"


class TranslatingReply:
    """Hands `reply` what `teller` makes of a chat answer."""

    __slots__ = ("_body", "_events", "_form", "_head", "_is_told", "_num_bytes", "_reply", "_teller")

    def __init__(self, reply: Reply, teller: Teller) -> None:
        self._reply = reply
        self._teller = teller
        self._form = Form.UNKNOWN
        self._events = Events()
        self._head: tuple[int, Headers, Headers] = (0, (), ())
        self._body: list[bytes] = []
        self._num_bytes = 0
        self._is_told = False

    # ports.Reply

    def bind(self, flow: Flow) -> None:
        self._reply.bind(flow)

    def head(self, status: int, headers: Headers, own: Headers = (), length: int | None = None) -> None:
        if status < 400 and is_event_stream(headers):
            self._form = Form.STREAM
            self._reply.head(status, headers, own, None)
        else:
            self._form, self._head = Form.WHOLE, (status, headers, own)

    def write(self, payload: bytes, framed: bytes | None = None) -> None:
        if self._form is Form.WHOLE:
            self._num_bytes += len(payload)
            if self._num_bytes <= MAX_WHOLE_BYTES:
                self._body.append(payload)
            return
        told = [b": %b\n\n" % comment.encode() for comment in self._events.comments(payload)]
        told += [self._event(found) for found in self._events.feed(payload)]
        if whole := b"".join(told):
            self._reply.write(whole)

    def end(self, outcome: Outcome, *, is_complete: bool) -> None:
        if self._form is Form.STREAM:
            self._reply.end(outcome, is_complete=is_complete and self._is_told)
            return
        status, headers, own = self._head
        status, body = self._translated(status, is_complete)
        passed = tuple(pair for pair in headers if pair[0] not in _OF_BODY)
        self._reply.head(status, (*passed, *JSON), own, len(body))
        self._reply.write(body)
        self._reply.end(outcome, is_complete=True)

    # the rest

    def _event(self, found: bytes) -> bytes:
        if self._is_told:
            return b""
        if found == chunks.DONE:
            self._is_told = True
            return self._teller.ending(None)
        try:
            chunk = chunks.decode(found)
        except PointsmanError as error:
            self._is_told = True
            return self._teller.ending(Failure(error.message, error.type, None, error.code))
        if (failure := chunk.failure) is not None:
            self._is_told = True
            return self._teller.ending(failure)
        return self._teller.event(chunk)

    def _translated(self, status: int, is_complete: bool) -> tuple[int, bytes]:
        body = b"".join(self._body)
        try:
            if not is_complete or self._num_bytes > MAX_WHOLE_BYTES:
                raise BadAnswer("The replica's answer was cut before its end, or is too long.")
            chunk = chunks.decode(body)
        except PointsmanError as error:
            return error.status, self._teller.refusal(
                error.status, Failure(error.message, error.type, None, error.code)
            )
        if status >= 400 or chunk.failure is not None:
            failure = chunk.failure or Failure(message=body.decode("utf-8", "replace"))
            return status, self._teller.refusal(status, failure)
        return status, self._teller.whole(chunk)
