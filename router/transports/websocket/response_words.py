"""The messages of `/v1/responses` as a socket, both ways: OpenAI's WebSocket mode. Knows their JSON; knows nothing of
sockets or of who serves them.

From a client, each with a `type`:
    response.create {stream_id?, generate?, ...}  a body as over HTTP, without `stream` and `background`. Those of one
                    `stream_id` are answered one after the other; `generate: false` computes the prompt alone
    response.cancel {response_id}                 stop one that runs on this socket; ours
    response.resume {response_id, starting_after?, stream_id?}  follow one that is stored; ours
    auth            {key}                         where the client cannot set headers; ours
To a client: the events of responses as over SSE, with their `stream_id` where they have one; and
    error {status, error, stream_id?}             OpenAI's error object; the socket and all else on it live on
"""

import re
from typing import Annotated

import msgspec

from router.errors import InvalidRequest, PointsmanError
from router.openai import error_object, invalid_field
from router.transports.websocket.words import Auth, Id

MAX_STREAM_ID_CHARS = 256
_STREAM_ID = re.compile(rf"[\w.-]{{1,{MAX_STREAM_ID_CHARS}}}", re.ASCII)
# Of the message, not of the body; `stream` is implied.
_OF_MESSAGE = ("type", "stream_id", "generate", "background")


class InvalidStreamId(InvalidRequest):
    code = "invalid_stream_id"


class Create(msgspec.Struct, tag="response.create"):
    """`body` is that of a request over HTTP, set once it is decoded."""

    stream_id: str | None = None
    generate: bool | None = None
    background: bool | None = None
    body: bytes = b""


class Cancel(msgspec.Struct, tag="response.cancel"):
    response_id: Id


class Resume(msgspec.Struct, tag="response.resume"):
    response_id: Id
    starting_after: Annotated[int, msgspec.Meta(ge=0)] | None = None
    stream_id: str | None = None


Word = Create | Cancel | Resume | Auth
_WORD = msgspec.json.Decoder(Word)
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _Named(msgspec.Struct):
    stream_id: str | None = None


_NAMED = msgspec.json.Decoder(_Named)


def decode(text: str) -> Word:
    """Raises InvalidRequest that names the field."""
    try:
        word = _WORD.decode(text)
        if isinstance(word, Create):
            word.body = _body(_FIELDS.decode(text))
    except msgspec.ValidationError as error:
        raise invalid_field(str(error)) from None
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise InvalidRequest(f"The message is not valid JSON: {error}.") from None
    if isinstance(word, Create) and word.background:
        raise InvalidRequest("`background` is not supported on a socket.", param="background")
    stream_id = None if isinstance(word, Cancel | Auth) else word.stream_id
    if stream_id is not None and not _STREAM_ID.fullmatch(stream_id):
        allowed = f"1 to {MAX_STREAM_ID_CHARS} ASCII letters, digits, `_`, `-` and `.`"
        raise InvalidStreamId(f"`stream_id` must be {allowed}.", param="stream_id")
    return word


def named(text: str) -> str | None:
    """The stream that a wrong message names, as far as it can be read."""
    try:
        return _NAMED.decode(text).stream_id
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None


def failed(error: PointsmanError, stream_id: str | None) -> bytes:
    return failed_as(error.status, error_object(error), stream_id)


def failed_as(status: int, error: object, stream_id: str | None) -> bytes:
    fields = {"type": "error", "status": status, "error": error}
    return msgspec.json.encode(fields if stream_id is None else fields | {"stream_id": stream_id})


def event(payload: bytes, stream_id: str | None) -> bytes:
    """An event of a response as it came, and the stream that it belongs to."""
    return payload if stream_id is None else b'%b,"stream_id":"%b"}' % (payload[:-1], stream_id.encode())


def _body(fields: dict[str, msgspec.Raw]) -> bytes:
    kept = {name: value for name, value in fields.items() if name not in _OF_MESSAGE}
    return msgspec.json.encode(kept | {"stream": msgspec.Raw(b"true")})
