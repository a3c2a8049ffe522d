"""OpenAI's answers taken apart, for transports that speak another form: SSE events, chunks of a stream, whole answers.

Knows OpenAI's JSON and SSE's lines; knows nothing of sockets or of the form that comes out. Unknown fields are skipped;
what cannot be decoded raises BadAnswer.
"""

from typing import Any

import msgspec

from router.errors import BadAnswer

DONE = b"[DONE]"


class Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class Call(msgspec.Struct):
    """A tool call, or in a stream the next piece of one."""

    index: int = 0
    id: str | None = None
    function: Function | None = None


class Message(msgspec.Struct):
    """A message, or in a stream what is appended to it."""

    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Call] | None = None


class Choice(msgspec.Struct):
    """`delta` in a chat stream, `message` in a whole chat answer, `text` in both forms of a completion."""

    index: int = 0
    delta: Message | None = None
    message: Message | None = None
    text: str | None = None
    finish_reason: str | None = None


class PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class Counts(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None


class Vector(msgspec.Struct):
    embedding: list[float]
    index: int = 0


class Failure(msgspec.Struct):
    """OpenAI's error object."""

    message: str = ""
    type: str | None = None
    param: str | None = None
    code: str | None = None


class Chunk(msgspec.Struct):
    """A whole answer or one event of a stream."""

    id: str = ""
    model: str = ""
    choices: list[Choice] = []
    usage: Counts | None = None
    data: list[Vector] = []
    error: Any = None

    @property
    def failure(self) -> Failure | None:
        """The error that this event tells of, whatever shape an engine gave it."""
        if not self.error:
            return None
        try:
            return msgspec.convert(self.error, Failure)
        except msgspec.ValidationError:
            return Failure(message=str(self.error))


_CHUNK = msgspec.json.Decoder(Chunk)


def decode(payload: bytes) -> Chunk:
    """One event's data, or the body of a whole answer."""
    try:
        return _CHUNK.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadAnswer(f"The replica's answer is not what OpenAI's API sends: {error}.") from None


class Events:
    """Bytes of an SSE stream in, the data of its whole events out. Comments, names and ids are skipped."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = b""

    def feed(self, payload: bytes) -> list[bytes]:
        """The data of each event that this payload completes."""
        whole = (self._held + payload if self._held else payload).replace(b"\r\n", b"\n")
        *events, self._held = whole.split(b"\n\n")
        return [found for event in events if (found := _data(event)) is not None]

    def comments(self, payload: bytes) -> list[str]:
        """The comments in a payload of whole lines."""
        return [line[1:].strip().decode("utf-8", "replace") for line in payload.splitlines() if line.startswith(b":")]


def _data(event: bytes) -> bytes | None:
    if event.startswith(b"data: ") and b"\n" not in event:
        return event[6:]
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None
