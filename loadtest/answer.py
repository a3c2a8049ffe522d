"""One answer as it arrives: bytes and their times in, tokens, usage and faults out.

Knows server-sent events and OpenAI's wire shapes; knows no sockets and no clock. Everything here runs once per
chunk of every stream, so it stays small: a slow reader would show up as a slow server.
"""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from loadtest.sample import Failure, Fault

# Finish reasons by which engines say that they gave up on a request.
_ABORTED = frozenset({"abort", "error"})


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    message: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Part(msgspec.Struct):
    """A chunk of a stream or a whole answer; `error` and vLLM's flat error object may stand in for either."""

    choices: list[_Choice] | None = None
    usage: Usage | None = None
    error: Any = None
    object: str | None = None
    message: str | None = None


_PARTS = msgspec.json.Decoder(_Part)


@dataclass(eq=False, slots=True)
class Events:
    """Splits a byte stream into the data of server-sent events; holds an incomplete line until it is whole."""

    _tail: bytes = b""
    _lines: list[bytes] = field(default_factory=list)

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the data of the events that `piece` completes; comments and other fields are dropped."""
        lines = (self._tail + piece).split(b"\n")
        self._tail = lines.pop()
        events = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._lines.append(line[5:].removeprefix(b" "))
            elif not line and self._lines:
                events.append(b"\n".join(self._lines))
                self._lines.clear()
        return events


@dataclass(eq=False, slots=True)
class Answer:
    """The state of one answer while it is read."""

    first_token_s: float | None = None
    gaps_s: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    num_chunks: int = 0
    usage: Usage | None = None
    is_done: bool = False
    failure: Failure | None = None
    _is_finished: bool = False
    _last_token_s: float = 0.0
    _events: Events = field(default_factory=Events)

    def __repr__(self) -> str:
        state = "FAILED" if self.failure else "DONE" if self.is_done else "OPEN"
        return f"<Answer {state} {self.num_chunks} chunks>"

    def take(self, piece: bytes, now: float) -> None:
        """Read a piece of a stream that arrived at `now`; look at `failure` and `is_done` afterwards."""
        for event in self._events.feed(piece):
            if self.is_done or self.failure:
                return
            if event == b"[DONE]":
                self.is_done = True
            else:
                self._read(event, now)

    def take_whole(self, body: bytes) -> None:
        """Read an answer that was not streamed; it has no first-token time."""
        self._read(body, None)
        self.is_done = True

    def close(self) -> None:
        """The answer ends here: without a finish reason and an end mark it was cut."""
        if self.failure is None and not (self.is_done and self._is_finished):
            missing = "finish_reason" if not self._is_finished else "[DONE]"
            self.failure = Failure(Fault.CUT, f"the answer ended without {missing}")

    def _read(self, payload: bytes, now: float | None) -> None:
        try:
            part = _PARTS.decode(payload)
        except msgspec.DecodeError as error:
            self.failure = Failure(Fault.UNREADABLE, f"{error}: {_clip(payload)}")
            return
        if part.error or part.object == "error":
            self.failure = Failure(Fault.IN_BAND, error_message(part.error or part.message))
            return
        if part.usage is not None:
            self.usage = part.usage
        for choice in part.choices or ():
            self._read_choice(choice, now)

    def _read_choice(self, choice: _Choice, now: float | None) -> None:
        delta = choice.delta or choice.message
        text = choice.text or (delta and delta.content) or ""
        if text or (delta and (delta.reasoning_content or delta.reasoning or delta.tool_calls)):
            self._count_output(text, now)
        if choice.finish_reason is not None:
            self._is_finished = True
            if choice.finish_reason in _ABORTED:
                self.failure = Failure(Fault.IN_BAND, f"finish_reason {choice.finish_reason!r}")

    def _count_output(self, text: str, now: float | None) -> None:
        self.num_chunks += 1
        self.texts.append(text)
        if now is None:
            return
        if self.first_token_s is None:
            self.first_token_s = now
        else:
            self.gaps_s.append(now - self._last_token_s)
        self._last_token_s = now


def error_message(error: Any) -> str:
    """The readable part of an OpenAI error: an object with `message`, or a bare string."""
    if isinstance(error, dict):
        nested = error.get("error", error)
        error = nested.get("message", nested) if isinstance(nested, dict) else nested
    return str(error)


def status_message(body: bytes) -> str:
    """The readable part of the body of an error status, whatever its shape."""
    try:
        return error_message(msgspec.json.decode(body))
    except msgspec.DecodeError:
        return _clip(body)


def _clip(payload: bytes) -> str:
    return payload[:120].decode("utf-8", "replace")
