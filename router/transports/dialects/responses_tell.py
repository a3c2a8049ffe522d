"""Chat answers in the form of OpenAI's Responses API: whole, and as its events. Knows both forms and the order of
events; knows nothing of sockets or of what is stored."""

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from router.transports.chunks import Call, Choice, Chunk, Counts, Failure, Message
from router.transports.dialects.responses_ask import Asked
from router.transports.responses.states import ENDED, ResponseState

Wall = Callable[[], float]
Item = dict[str, Any]

CANCELLED = {"code": "response_cancelled", "message": "The response was cancelled."}
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


@dataclass(eq=False, slots=True)
class ResponseTeller:
    """`ports.Teller` of one response, but for its last event, which is told once it is stored: `last`.

    `is_stored` is what it says of that; `wall` is seconds since 1970."""

    asked: Asked
    wall: Wall = time.time
    id: str = field(default_factory=lambda: f"resp_{secrets.token_hex(24)}")
    state: ResponseState = ResponseState.IN_PROGRESS
    is_stored: bool = True
    output: list[Item] = field(default_factory=list)
    error: Mapping[str, Any] | None = None
    _created_at: int = 0
    _number: int = 0
    _has_begun: bool = False
    _model: str = ""
    _reason: str | None = None
    _usage: Counts | None = None
    _open: Item | None = None
    _calls: dict[int, Item] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._created_at = int(self.wall())
        self._model = self.asked.ask.model
        self.is_stored = self.asked.ask.store is not False

    # ports.Teller

    def event(self, chunk: Chunk) -> bytes:
        told = self._begin()
        self._usage = chunk.usage or self._usage
        self._model = chunk.model or self._model
        for choice in chunk.choices[:1]:
            told += self._choice(choice)
        return told

    def ending(self, failure: Failure | None) -> bytes:
        told = self._begin() + self._close_all()
        self._end(failure)
        return told

    def whole(self, chunk: Chunk) -> bytes:
        self._usage, self._model = chunk.usage, chunk.model or self._model
        message = (chunk.choices[0].message if chunk.choices else None) or Message()
        self._reason = chunk.choices[0].finish_reason if chunk.choices else None
        reasoning = message.reasoning or message.reasoning_content
        if reasoning:
            self.output.append(_reasoning_item(reasoning))
        if message.content:
            self.output.append(_text_item(message.content))
        self.output += [_call_item(call) for call in message.tool_calls or ()]
        for item in self.output:
            item["status"] = "completed"
        self._end(None)
        return msgspec.json.encode(self.response())

    def refusal(self, status: int, failure: Failure) -> bytes:
        self._end(failure)
        return msgspec.json.encode({"error": msgspec.to_builtins(failure)})

    # for who asks

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    def queue(self) -> bytes:
        """It waits: the events that open a stream of one in the background."""
        self.state = ResponseState.QUEUED
        told = self._say("response.created", response=self.response())
        return told + self._say("response.queued", response=self.response())

    @property
    def num_told(self) -> int:
        """Events so far: the number of the next."""
        return self._number

    def prepare(self) -> bytes:
        """The events that open a stream of one that has no output, and has ended."""
        told = self._begin()
        self.state = ResponseState.COMPLETED
        return told

    def cancel(self) -> None:
        """It ends here."""
        self.state, self.error = ResponseState.CANCELLED, CANCELLED

    def last(self) -> bytes:
        """The event that ends a stream."""
        return last_event(self.response(), self.state, self._number)

    def response(self) -> dict[str, Any]:
        """The response as it stands."""
        ask, fields = self.asked.ask, self.asked.fields
        reason = _INCOMPLETE.get(self._reason or "")
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created_at,
            "status": self.state,
            "background": bool(ask.background),
            "error": self.error,
            "incomplete_details": {"reason": reason} if self.state is ResponseState.INCOMPLETE else None,
            "instructions": ask.instructions,
            "max_output_tokens": ask.max_output_tokens,
            "metadata": ask.metadata or {},
            "model": self._model,
            "output": self.output,
            "parallel_tool_calls": fields.get("parallel_tool_calls", True),
            "previous_response_id": ask.previous_response_id,
            "reasoning": {"effort": None, "summary": None} | (ask.reasoning or {}),
            "service_tier": fields.get("service_tier", "default"),
            "store": self.is_stored,
            "temperature": fields.get("temperature"),
            "text": ask.text or {"format": {"type": "text"}},
            "tool_choice": ask.tool_choice or "auto",
            "tools": ask.tools or [],
            "top_p": fields.get("top_p"),
            "truncation": "disabled",
            "usage": _usage(self._usage),
            "user": fields.get("user"),
        }

    def said(self) -> list[dict[str, Any]]:
        """The answer as chat messages, for the responses that follow it."""
        text = "".join(part["text"] for item in self.output if item["type"] == "message" for part in item["content"])
        calls = [
            {
                "id": item["call_id"],
                "type": "function",
                "function": {"name": item["name"], "arguments": item["arguments"]},
            }
            for item in self.output
            if item["type"] == "function_call"
        ]
        if not text and not calls:
            return []
        return [{"role": "assistant", "content": text or None, **({"tool_calls": calls} if calls else {})}]

    # the rest

    def _begin(self) -> bytes:
        if self._has_begun:
            return b""
        self._has_begun = True
        was_queued, self.state = self.state is ResponseState.QUEUED, ResponseState.IN_PROGRESS
        told = b"" if was_queued else self._say("response.created", response=self.response())
        return told + self._say("response.in_progress", response=self.response())

    def _end(self, failure: Failure | None) -> None:
        if failure is not None:
            self.state = ResponseState.FAILED
            self.error = {"code": failure.code or failure.type or "server_error", "message": failure.message}
        else:
            self.state = ResponseState.INCOMPLETE if self._reason in _INCOMPLETE else ResponseState.COMPLETED

    def _choice(self, choice: Choice) -> bytes:
        self._reason = choice.finish_reason or self._reason
        delta = choice.delta or Message()
        told = b""
        if thought := delta.reasoning or delta.reasoning_content:
            told += self._append("reasoning", thought)
        if delta.content:
            told += self._append("message", delta.content)
        for call in delta.tool_calls or ():
            told += self._append_call(call)
        return told

    def _append(self, kind: str, text: str) -> bytes:
        told = b""
        if self._open is None or self._open["type"] != kind:
            told = self._close() + self._begin_item(_text_item("") if kind == "message" else _reasoning_item(""))
        item = self._open
        assert item is not None  # opened above
        item["content"][0]["text"] += text
        name = "response.output_text.delta" if kind == "message" else "response.reasoning_text.delta"
        more: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
        return told + self._say(name, **self._place(item), content_index=0, delta=text, **more)

    def _append_call(self, call: Call) -> bytes:
        item = self._calls.get(call.index)
        told = b""
        if item is None:
            item = self._calls[call.index] = _call_item(Call(index=call.index, id=call.id, function=call.function))
            item["arguments"] = ""
            told = self._close() + self._begin_item(item)
        piece = (call.function.arguments if call.function else None) or ""
        item["arguments"] += piece
        if piece:
            told += self._say("response.function_call_arguments.delta", **self._place(item), delta=piece)
        return told

    def _begin_item(self, item: Item) -> bytes:
        self._open = item
        self.output.append(item)
        told = self._say("response.output_item.added", output_index=len(self.output) - 1, item=item | _emptied(item))
        if item["type"] == "function_call":
            return told
        part = item["content"][0] | {"text": ""}
        return told + self._say("response.content_part.added", **self._place(item), content_index=0, part=part)

    def _close(self) -> bytes:
        """End the item that is open, unless it is a call: calls may come interleaved."""
        item, self._open = self._open, None
        return b"" if item is None or item["type"] == "function_call" else self._end_item(item)

    def _close_all(self) -> bytes:
        told = self._close()
        return told + b"".join(self._end_item(item) for item in self._calls.values())

    def _end_item(self, item: Item) -> bytes:
        item["status"] = "completed"
        place = self._place(item)
        if item["type"] == "function_call":
            told = self._say(
                "response.function_call_arguments.done", **place, name=item["name"], arguments=item["arguments"]
            )
        else:
            part = item["content"][0]
            kind = "output_text" if item["type"] == "message" else "reasoning_text"
            more: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
            told = self._say(f"response.{kind}.done", **place, content_index=0, text=part["text"], **more)
            told += self._say("response.content_part.done", **place, content_index=0, part=part)
        return told + self._say("response.output_item.done", output_index=place["output_index"], item=item)

    def _place(self, item: Item) -> dict[str, Any]:
        return {"item_id": item["id"], "output_index": next(i for i, each in enumerate(self.output) if each is item)}

    def _say(self, type: str, **fields: Any) -> bytes:
        told = _event(type, self._number, fields)
        self._number += 1
        return told


def last_event(response: Mapping[str, Any], state: ResponseState, number: int) -> bytes:
    """What ends the stream of a response. What was cancelled failed, as far as names of events go."""
    name = ResponseState.FAILED if state is ResponseState.CANCELLED else state
    return _event(f"response.{name}", number, {"response": response})


def _event(type: str, number: int, fields: Mapping[str, Any]) -> bytes:
    body = msgspec.json.encode({"type": type, "sequence_number": number, **fields})
    return b"event: %b\ndata: %b\n\n" % (type.encode(), body)


def _emptied(item: Item) -> Item:
    return {"arguments": ""} if item["type"] == "function_call" else {"content": []}


def _text_item(text: str) -> Item:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"id": _id("msg"), "type": "message", "status": "in_progress", "role": "assistant", "content": [part]}


def _reasoning_item(text: str) -> Item:
    part = {"type": "reasoning_text", "text": text}
    return {"id": _id("rs"), "type": "reasoning", "status": "in_progress", "summary": [], "content": [part]}


def _call_item(call: Call) -> Item:
    function = call.function
    return {
        "id": _id("fc"),
        "type": "function_call",
        "status": "in_progress",
        "call_id": call.id or _id("call"),
        "name": (function.name if function else None) or "",
        "arguments": (function.arguments if function else None) or "",
    }


def _id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(24)}"


def _usage(counts: Counts | None) -> dict[str, Any] | None:
    if counts is None:
        return None
    details, output = counts.prompt_tokens_details, counts.completion_tokens or 0
    return {
        "input_tokens": counts.prompt_tokens,
        "input_tokens_details": {"cached_tokens": (details.cached_tokens if details else None) or 0},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counts.prompt_tokens + output,
    }
