"""OpenAI answers: what outputs look like on the wire, whole and as server-sent events.

Knows the shapes of the bodies, and how an answer with several choices is put together. Must not know requests, the
engine or HTTP.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from engine.sequence import FinishReason, Output
from engine.server.logprobs import Spelling
from engine.server.tools import CallPiece, Piece, ToolReader

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Head:
    """What is the same in all bodies of one answer. `kind` is OpenAI's object name of the whole answer; `created` is
    in seconds of Unix time."""

    id: str
    kind: str
    model: str
    created: int

    def event(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        kind = f"{self.kind}.chunk" if self.kind == "chat.completion" else self.kind
        return b"data: " + msgspec.json.encode(self._body(kind, choices) | more) + b"\n\n"

    def whole(self, choices: list[dict[str, Any]], used: dict[str, Any], **more: Any) -> bytes:
        return msgspec.json.encode(self._body(self.kind, choices) | {"usage": used} | more)

    def _body(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}


def usage(prompts: Sequence[int], choices: Sequence["Choice"]) -> dict[str, Any]:
    """`prompts` has the number of tokens of each; its choices, equally many for each, follow one another."""
    num_prompt_tokens = sum(prompts)
    num_output_tokens = sum(choice.num_output_tokens for choice in choices)
    # The other choices of a prompt find what the first one computed.
    firsts = choices[:: len(choices) // len(prompts)]
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_output_tokens,
        "total_tokens": num_prompt_tokens + num_output_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(choice.num_cached_tokens for choice in firsts)},
    }


@dataclass(eq=False, slots=True)
class ChatChoice:
    """One choice of a chat as it grows. With `tools`, its text is read for calls."""

    index: int
    spelling: Spelling | None = None
    tools: ToolReader | None = None
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    _has_opened: bool = False
    _said: list[str] = field(default_factory=list)
    _calls: list[dict[str, Any]] = field(default_factory=list)
    _logprobs: list[dict[str, Any]] = field(default_factory=list)
    _last: Output | None = None

    def deltas(self, output: Output) -> list[dict[str, Any]]:
        """What this output adds, for an event each; the role comes before the first text."""
        opening = [] if self._has_opened else [self._choice({"role": "assistant", "content": ""}, [])]
        self._has_opened = True
        self._count(output)
        change: dict[str, Any] = {}
        for piece in self._pieces(output):
            if isinstance(piece, str):
                change["content"] = change.get("content", "") + piece
            else:
                change.setdefault("tool_calls", []).append(_call_delta(piece))
        logprobs = self._spelled(output)
        if not (change or logprobs or output.finish_reason):
            return opening
        if not change:
            change["content"] = ""
        return [*opening, self._choice(change, logprobs) | self._ending(output)]

    def take(self, output: Output) -> None:
        """Keeps what this output adds, for `whole`."""
        self._count(output)
        for piece in self._pieces(output):
            if isinstance(piece, str):
                self._said.append(piece)
            elif piece.name is not None:
                self._calls.append(_call(piece))
            else:
                self._calls[-1]["function"]["arguments"] += piece.arguments
        self._logprobs += self._spelled(output)
        self._last = output

    def whole(self) -> dict[str, Any]:
        assert self._last is not None
        said = "".join(self._said)
        message: dict[str, Any] = {"role": "assistant", "content": said if said or not self._calls else None}
        if self._calls:
            message["tool_calls"] = self._calls
        logprobs = None if self.spelling is None else {"content": self._logprobs}
        return {"index": self.index, "message": message, "logprobs": logprobs, **self._ending(self._last)}

    def _count(self, output: Output) -> None:
        self.num_output_tokens, self.num_cached_tokens = output.num_output_tokens, output.num_cached_tokens

    def _pieces(self, output: Output) -> list[Piece]:
        if self.tools is None:
            return [output.text] if output.text else []
        pieces = list(self.tools.push(output.text))
        return pieces + list(self.tools.flush()) if output.finish_reason else pieces

    def _spelled(self, output: Output) -> list[dict[str, Any]]:
        return [] if self.spelling is None else [self.spelling.entry(each) for each in output.logprobs]

    def _choice(self, delta: dict[str, Any], logprobs: list[dict[str, Any]]) -> dict[str, Any]:
        told = {"content": logprobs} if logprobs else None
        return {"index": self.index, "delta": delta, "logprobs": told, "finish_reason": None}

    def _ending(self, output: Output) -> dict[str, Any]:
        has_called = self.tools is not None and self.tools.num_calls and output.finish_reason is FinishReason.STOP
        return _ending(output) | ({"finish_reason": "tool_calls"} if has_called else {})


@dataclass(eq=False, slots=True)
class CompletionChoice:
    """One choice of a completion as it grows. `echo` is the prompt's text, where it is to be repeated, and
    `prompt_ids` are its tokens; with `is_echo_only`, nothing but the prompt is shown."""

    index: int
    spelling: Spelling | None = None
    echo: str | None = None
    prompt_ids: Sequence[int] = ()
    is_echo_only: bool = False
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    _texts: list[str] = field(default_factory=list)
    _columns: dict[str, list[Any]] = field(default_factory=dict)
    _last: Output | None = None

    def deltas(self, output: Output) -> list[dict[str, Any]]:
        text, columns = self._text(output), self._spelled(output)
        if not (text or columns or output.finish_reason):
            return []
        return [{"index": self.index, "text": text, "logprobs": columns, **_ending(output)}]

    def take(self, output: Output) -> None:
        self._texts.append(self._text(output))
        for name, values in (self._spelled(output) or {}).items():
            self._columns.setdefault(name, []).extend(values)
        self._last = output

    def whole(self) -> dict[str, Any]:
        assert self._last is not None
        text, columns = "".join(self._texts), self._columns or None
        return {"index": self.index, "text": text, "logprobs": columns, **_ending(self._last)}

    def _text(self, output: Output) -> str:
        echo = self.echo if self.echo is not None and self.num_output_tokens == 0 else ""
        return echo + ("" if self.is_echo_only else output.text)

    def _spelled(self, output: Output) -> dict[str, list[Any]] | None:
        """Columns for the tokens of this output, behind those of the prompt where it is repeated."""
        is_first = self.num_output_tokens == 0
        self.num_output_tokens = 0 if self.is_echo_only else output.num_output_tokens
        self.num_cached_tokens = output.num_cached_tokens
        if self.spelling is None:
            return None
        told = () if self.is_echo_only else output.logprobs
        if is_first and self.echo is not None:
            return self.spelling.columns([self.prompt_ids[0], *output.prompt_logprobs, *told])
        return self.spelling.columns(told) if told else None


Choice = ChatChoice | CompletionChoice


def _ending(output: Output) -> dict[str, Any]:
    if output.finish_reason is None:
        return {"finish_reason": None}
    return {"finish_reason": output.finish_reason.value, "stop_reason": output.stop_reason}


def _call(piece: CallPiece) -> dict[str, Any]:
    function = {"name": piece.name, "arguments": piece.arguments}
    return {"id": piece.id, "type": "function", "function": function}


def _call_delta(piece: CallPiece) -> dict[str, Any]:
    if piece.name is not None:
        return {"index": piece.index, **_call(piece)}
    return {"index": piece.index, "function": {"arguments": piece.arguments}}
