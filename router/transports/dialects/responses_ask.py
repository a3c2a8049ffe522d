"""Requests of OpenAI's Responses API as chat bodies. Knows both forms; knows nothing of sockets or of what is stored.

Raises InvalidRequest that names the field. What a chat engine cannot do (hosted tools, files) is refused by name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from router.errors import InvalidRequest
from router.openai import decoded, text_field

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
# Same name and meaning in both APIs.
_SAME = (
    "model temperature top_p user metadata parallel_tool_calls service_tier prompt_cache_key safety_identifier "
    "top_logprobs priority cache_salt chat_template_kwargs"
).split()
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")


class Ask(msgspec.Struct, kw_only=True):
    """The fields that we read ourselves; all others of `_SAME` go through as they are."""

    model: str
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    background: bool | None = None
    max_output_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    truncation: str | None = None
    conversation: Any = None
    prompt: Any = None
    metadata: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, decoded. `fields` is its JSON, `messages` its own part of the conversation in chat's form."""

    ask: Ask
    fields: Mapping[str, Any]
    messages: Sequence[Mapping[str, Any]]

    @property
    def is_resumable(self) -> bool:
        """Where `store` is asked for by name, a stream goes on for a while without its client."""
        return self.ask.stream is True and self.ask.store is True

    @property
    def is_streamed(self) -> bool:
        """Asked of the engine as a stream: also what nobody waits for, so that it is known when it begins."""
        return bool(self.ask.stream or self.ask.background)

    def prefill_body(self, before: Sequence[Mapping[str, Any]]) -> bytes:
        """The chat body that computes the prompt, for one that is yet to be asked."""
        fields = msgspec.json.decode(self.chat_body(before, is_stream=False))
        return msgspec.json.encode(fields | {"max_tokens": 1})

    def chat_body(self, before: Sequence[Mapping[str, Any]], *, is_stream: bool) -> bytes:
        """The chat body, where `before` was said in earlier responses. Instructions are of this response alone."""
        ask = self.ask
        told = [{"role": "system", "content": ask.instructions}] if ask.instructions else []
        body: dict[str, Any] = {name: self.fields[name] for name in _SAME if self.fields.get(name) is not None}
        body["messages"] = [*told, *before, *self.messages]
        if ask.max_output_tokens is not None:
            body["max_tokens"] = ask.max_output_tokens
        if is_stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if ask.tools:
            body["tools"] = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(ask.tools)]
        if ask.tool_choice is not None and ask.tools:
            body["tool_choice"] = _tool_choice(ask.tool_choice)
        if (form := _response_format(ask.text)) is not None:
            body["response_format"] = form
        if ask.reasoning and ask.reasoning.get("effort") is not None:
            body["reasoning_effort"] = ask.reasoning["effort"]
        return msgspec.json.encode(body)


def decode(body: bytes) -> Asked:
    fields, ask = decoded(body, Ask)
    for name in ("conversation", "prompt"):
        if getattr(ask, name) is not None:
            raise InvalidRequest(f"`{name}` is not supported: what it names is kept by OpenAI.", param=name)
    if ask.truncation not in (None, "disabled"):
        raise InvalidRequest(
            "`truncation` must be `disabled`: nothing is cut from a conversation here.", param="truncation"
        )
    if ask.reasoning and ask.reasoning.get("effort") not in (None, *_EFFORTS):
        raise InvalidRequest(f"`reasoning.effort` must be one of {', '.join(_EFFORTS)}.", param="reasoning.effort")
    if ask.background and ask.store is False:
        raise InvalidRequest("`store` cannot be false together with `background`: it is read later.", param="store")
    if ask.input is None:
        raise InvalidRequest("The field `input` is required.", param="input")
    return Asked(ask, fields, messages_of(ask.input))


def messages_of(given: str | Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Input items as chat messages. Calls that follow each other are one assistant message, as chat has them."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not given:
        raise InvalidRequest("`input` must hold at least one item.", param="input")
    messages: list[dict[str, Any]] = []
    for i, item in enumerate(given):
        message = _message(item, f"input[{i}]")
        if message is None:
            continue
        if "tool_calls" in message and messages and messages[-1]["role"] == "assistant":
            messages[-1].setdefault("tool_calls", []).extend(message["tool_calls"])
        else:
            messages.append(message)
    return messages


def _message(item: Mapping[str, Any], where: str) -> dict[str, Any] | None:
    match item.get("type", "message"):
        case "message":
            role = _ROLES.get(str(item.get("role")))
            if role is None:
                raise InvalidRequest(f"`{where}.role` must be one of {', '.join(_ROLES)}.", param=f"{where}.role")
            return {"role": role, "content": _content(item.get("content"), f"{where}.content")}
        case "function_call":
            function = {"name": text_field(item, "name", where), "arguments": text_field(item, "arguments", where)}
            call = {"id": text_field(item, "call_id", where), "type": "function", "function": function}
            return {"role": "assistant", "content": None, "tool_calls": [call]}
        case "function_call_output":
            content = item.get("output")
            shown = content if isinstance(content, str) else _content(content, f"{where}.output")
            return {"role": "tool", "tool_call_id": text_field(item, "call_id", where), "content": shown}
        case "reasoning":
            return None  # what a model thought is not said to it again
        case other:
            raise InvalidRequest(f"`{where}` has the type `{other}`, which is not supported.", param=f"{where}.type")


def _content(content: Any, where: str) -> Any:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise InvalidRequest(f"`{where}` must be a string or a list of parts.", param=where)
    parts = [_part(part, f"{where}[{i}]") for i, part in enumerate(content)]
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)  # most templates know strings only
    return parts


def _part(part: Any, where: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("input_text", "output_text", "text", "refusal"):
        return {"type": "text", "text": str(part.get("text", part.get("refusal", "")))}
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        detail = {"detail": part["detail"]} if part.get("detail") else {}
        return {"type": "image_url", "image_url": {"url": part["image_url"], **detail}}
    raise InvalidRequest(f"`{where}` has the type `{kind}`, which is not supported.", param=where)


def _tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise InvalidRequest(f"`{where}.type` must be `function`: hosted tools run at OpenAI.", param=f"{where}.type")
    kept = ("name", "description", "parameters", "strict")
    function = {name: tool[name] for name in kept if tool.get(name) is not None}
    return {"type": "function", "function": {"name": text_field(tool, "name", where), **function}}


def _tool_choice(choice: str | Mapping[str, Any]) -> Any:
    if isinstance(choice, str):
        return choice
    if choice.get("type") != "function":
        raise InvalidRequest("`tool_choice.type` must be `function`.", param="tool_choice.type")
    return {"type": "function", "function": {"name": text_field(choice, "name", "tool_choice")}}


def _response_format(text: Mapping[str, Any] | None) -> dict[str, Any] | None:
    form = (text or {}).get("format")
    if not isinstance(form, dict) or form.get("type") in (None, "text"):
        return None
    if form["type"] == "json_object":
        return {"type": "json_object"}
    if form["type"] != "json_schema":
        raise InvalidRequest("`text.format.type` must be text, json_object or json_schema.", param="text.format.type")
    schema = {name: form[name] for name in ("name", "schema", "strict", "description") if form.get(name) is not None}
    return {"type": "json_schema", "json_schema": schema}
