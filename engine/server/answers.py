"""OpenAI answers: what outputs look like on the wire, whole and as server-sent events.

Knows the shapes of the bodies. Must not know requests, the engine or HTTP.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from engine.sequence import Output

DONE = b"data: [DONE]\n\n"


def event(body: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def usage(num_prompt_tokens: int, last: Output) -> dict[str, Any]:
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": last.num_output_tokens,
        "total_tokens": num_prompt_tokens + last.num_output_tokens,
        "prompt_tokens_details": {"cached_tokens": last.num_cached_tokens},
    }


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """`created` is in seconds of Unix time."""

    id: str
    model: str
    created: int

    def opening(self) -> bytes:
        """The event that comes before the first text."""
        return self._chunk({"delta": {"role": "assistant", "content": ""}, "finish_reason": None})

    def delta(self, output: Output) -> bytes:
        return self._chunk({"delta": {"content": output.text}, **_ending(output)})

    def closing(self, used: dict[str, Any]) -> bytes:
        """The event with the usage, for those who asked."""
        return event({**self._head("chat.completion.chunk"), "choices": [], "usage": used})

    def whole(self, text: str, last: Output, used: dict[str, Any]) -> bytes:
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "logprobs": None, **_ending(last)}
        return msgspec.json.encode({**self._head("chat.completion"), "choices": [choice], "usage": used})

    def _chunk(self, choice: dict[str, Any]) -> bytes:
        choices = [{"index": 0, "logprobs": None, **choice}]
        return event({**self._head("chat.completion.chunk"), "choices": choices})

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


@dataclass(frozen=True, slots=True)
class CompletionAnswer:
    """`created` is in seconds of Unix time."""

    id: str
    model: str
    created: int

    def opening(self) -> bytes:
        return b""

    def delta(self, output: Output) -> bytes:
        return event({**self._head(), "choices": [self._choice(output.text, output)]})

    def closing(self, used: dict[str, Any]) -> bytes:
        return event({**self._head(), "choices": [], "usage": used})

    def whole(self, text: str, last: Output, used: dict[str, Any]) -> bytes:
        return msgspec.json.encode({**self._head(), "choices": [self._choice(text, last)], "usage": used})

    def _choice(self, text: str, output: Output) -> dict[str, Any]:
        return {"index": 0, "text": text, "logprobs": None, **_ending(output)}

    def _head(self) -> dict[str, Any]:
        return {"id": self.id, "object": "text_completion", "created": self.created, "model": self.model}


Answer = ChatAnswer | CompletionAnswer


def _ending(output: Output) -> dict[str, Any]:
    if output.finish_reason is None:
        return {"finish_reason": None}
    return {"finish_reason": output.finish_reason.value, "stop_reason": output.stop_reason}
