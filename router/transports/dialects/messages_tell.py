"""Chat answers in the form of Anthropic's Messages API: whole, and as its events. Knows both forms and the order of
events; knows nothing of sockets."""

import secrets
from dataclasses import dataclass, field
from typing import Any

import msgspec

from router.errors import PointsmanError
from router.transports.chunks import Call, Chunk, Counts, Failure, Message

_STOPS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_BY_STATUS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


@dataclass(eq=False, slots=True)
class MessageTeller:
    """`ports.Teller` of one message. Where it `hides_thoughts`, their blocks are empty."""

    model: str
    hides_thoughts: bool = False
    id: str = field(default_factory=lambda: f"msg_{secrets.token_hex(12)}")
    _has_begun: bool = False
    _index: int = -1
    _open: str | None = None
    _call: int | None = None
    _reason: str | None = None
    _usage: Counts | None = None

    # ports.Teller

    def event(self, chunk: Chunk) -> bytes:
        told = self._begin(chunk)
        self._usage = chunk.usage or self._usage
        for choice in chunk.choices[:1]:
            self._reason = choice.finish_reason or self._reason
            told += self._delta(choice.delta or Message())
        return told

    def ending(self, failure: Failure | None) -> bytes:
        if failure is not None:
            error = {"type": _kind(failure, None), "message": failure.message}
            return _say("error", error=error)
        told = self._begin(Chunk()) + self._close()
        delta = {"stop_reason": _STOPS.get(self._reason or "", "end_turn"), "stop_sequence": None}
        return told + _say("message_delta", delta=delta, usage=_usage(self._usage)) + _say("message_stop")

    def whole(self, chunk: Chunk) -> bytes:
        choice = chunk.choices[0] if chunk.choices else None
        message = (choice.message if choice else None) or Message()
        content: list[dict[str, Any]] = []
        if thought := message.reasoning or message.reasoning_content:
            shown = "" if self.hides_thoughts else thought
            content.append({"type": "thinking", "thinking": shown, "signature": ""})
        if message.content:
            content.append({"type": "text", "text": message.content})
        content += [_tool_use(call) for call in message.tool_calls or ()]
        reason = _STOPS.get((choice.finish_reason if choice else None) or "", "end_turn")
        return msgspec.json.encode(self._message(chunk.model, content, reason, chunk.usage))

    def refusal(self, status: int, failure: Failure) -> bytes:
        return refusal(status, failure)

    # the rest

    def _begin(self, chunk: Chunk) -> bytes:
        if self._has_begun:
            return b""
        self._has_begun = True
        return _say("message_start", message=self._message(chunk.model, [], None, chunk.usage))

    def _message(self, model: str, content: object, reason: str | None, usage: Counts | None) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": model or self.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": None,
            "usage": _usage(usage),
        }

    def _delta(self, delta: Message) -> bytes:
        told = b""
        if thought := delta.reasoning or delta.reasoning_content:
            told += self._block("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            if not self.hides_thoughts:
                told += self._say_delta({"type": "thinking_delta", "thinking": thought})
        if delta.content:
            told += self._block("text", {"type": "text", "text": ""})
            told += self._say_delta({"type": "text_delta", "text": delta.content})
        for call in delta.tool_calls or ():
            told += self._call_delta(call)
        return told

    def _call_delta(self, call: Call) -> bytes:
        told = b""
        if self._open != "tool_use" or self._call != call.index:
            told = self._close()
            self._call = call.index
            told += self._block("tool_use", _tool_use(Call(id=call.id, function=call.function)) | {"input": {}})
        if call.function and call.function.arguments:
            told += self._say_delta({"type": "input_json_delta", "partial_json": call.function.arguments})
        return told

    def _block(self, kind: str, block: dict[str, Any]) -> bytes:
        """The block of that kind is the open one."""
        if self._open == kind:
            return b""
        told = self._close()
        self._open = kind
        self._index += 1
        return told + _say("content_block_start", index=self._index, content_block=block)

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        was, self._open = self._open, None
        # SDKs wait for one; ours says nothing: whoever sends it back is believed.
        signed = self._say_delta({"type": "signature_delta", "signature": ""}) if was == "thinking" else b""
        return signed + _say("content_block_stop", index=self._index)

    def _say_delta(self, delta: dict[str, Any]) -> bytes:
        return _say("content_block_delta", index=self._index, delta=delta)


def refusal(status: int, failure: Failure) -> bytes:
    """Anthropic's error body."""
    error = {"type": _kind(failure, status), "message": failure.message}
    return msgspec.json.encode({"type": "error", "error": error})


def refusal_of(error: PointsmanError) -> bytes:
    return refusal(error.status, Failure(error.message, error.type, error.param, error.code))


def _kind(failure: Failure, status: int | None) -> str:
    if status is not None:
        return _BY_STATUS.get(status, "invalid_request_error" if status < 500 else "api_error")
    known = ("invalid_request_error", "rate_limit_error", "timeout_error")
    return failure.type if failure.type in known else "api_error"


def _tool_use(call: Call) -> dict[str, Any]:
    function = call.function
    arguments = (function.arguments if function else None) or ""
    try:
        given = msgspec.json.decode(arguments) if arguments else {}
    except msgspec.DecodeError:
        given = {"arguments": arguments}  # a model may write what is no JSON; nothing of it is lost
    name = (function.name if function else None) or ""
    return {"type": "tool_use", "id": call.id or f"toolu_{secrets.token_hex(12)}", "name": name, "input": given}


def _usage(counts: Counts | None) -> dict[str, Any]:
    """`input_tokens` are those that were not read from a cache."""
    counts = counts or Counts()
    details = counts.prompt_tokens_details
    cached = (details.cached_tokens if details else None) or 0
    return {
        "input_tokens": counts.prompt_tokens - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": counts.completion_tokens or 0,
    }


def _say(type: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (type.encode(), msgspec.json.encode({"type": type, **fields}))
