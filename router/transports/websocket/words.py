"""The messages of `/v1/chat/ws`, both ways. Knows their JSON; knows nothing of sockets or of who serves them.

From a client, each with a `type`:
    request.create {id, body, path?}        one request of OpenAI's API; `body` as over HTTP
    request.cancel {id}                     stop a request, or a turn of a session
    session.open   {session, body}          a conversation; `body` has the model, and what was said before as `messages`
    input.append   {session, text}          more of the next user message; it is prefilled while the rest is to come
    input.commit   {session, id, messages?} the next message is whole: answer it as request `id`
    session.close  {session}
    auth           {key}                    where the client cannot set headers
To a client:
    request.started {id, request_id, replica, reason}
    request.event   {id, event}             `event` is a chunk of OpenAI's stream, byte for byte
    request.done    {id}
    session.opened  {session}
    error           {id, session, error, status?}   OpenAI's error object; the socket and all else on it live on
    drain           {reconnect_after_s}     this router is stopping: open requests end, new ones go elsewhere
"""

from typing import Annotated

import msgspec

from router.core import Surface
from router.errors import InvalidRequest
from router.openai import invalid_field

Id = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]


class RequestCreate(msgspec.Struct, tag="request.create"):
    id: Id
    body: msgspec.Raw
    path: str = Surface.CHAT


class RequestCancel(msgspec.Struct, tag="request.cancel"):
    id: Id


class SessionOpen(msgspec.Struct, tag="session.open"):
    session: Id
    body: dict[str, object]


class InputAppend(msgspec.Struct, tag="input.append"):
    session: Id
    text: str


class InputCommit(msgspec.Struct, tag="input.commit"):
    session: Id
    id: Id
    messages: list[object] = []


class SessionClose(msgspec.Struct, tag="session.close"):
    session: Id


class Auth(msgspec.Struct, tag="auth"):
    key: Annotated[str, msgspec.Meta(min_length=1, max_length=512)]


Word = RequestCreate | RequestCancel | SessionOpen | InputAppend | InputCommit | SessionClose | Auth
_WORD = msgspec.json.Decoder(Word)


class _Named(msgspec.Struct):
    id: str | None = None
    session: str | None = None


_NAMED = msgspec.json.Decoder(_Named)


def decode(text: str) -> Word:
    """Raises InvalidRequest that names the field."""
    try:
        return _WORD.decode(text)
    except msgspec.ValidationError as error:
        raise invalid_field(str(error)) from None
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise InvalidRequest(f"The message is not valid JSON: {error}.") from None


def named(text: str) -> tuple[str | None, str | None]:
    """The id and session that a wrong message names, as far as it can be read."""
    try:
        found = _NAMED.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None, None
    return found.id, found.session


def started(id: str, request_id: str, replica: str | None, reason: str | None) -> bytes:
    return _encode(type="request.started", id=id, request_id=request_id, replica=replica, reason=reason)


def event(quoted_id: bytes, payload: bytes) -> bytes:
    """`quoted_id` is the id as JSON, `payload` a chunk as it came."""
    return b'{"type":"request.event","id":%b,"event":%b}' % (quoted_id, payload)


def done(id: str) -> bytes:
    return _encode(type="request.done", id=id)


def opened(session: str) -> bytes:
    return _encode(type="session.opened", session=session)


def failed(id: str | None, session: str | None, error: object, status: int | None = None) -> bytes:
    return _encode(type="error", id=id, session=session, error=error, status=status)


def drain(reconnect_after_s: float) -> bytes:
    return _encode(type="drain", reconnect_after_s=reconnect_after_s)


def _encode(**fields: object) -> bytes:
    return msgspec.json.encode(fields)
