"""Requests of Anthropic's Messages API as chat bodies. Knows both forms; knows nothing of sockets.

Raises InvalidRequest that names the field. What a chat engine cannot do (hosted tools, documents) is refused by name.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from router.errors import InvalidRequest
from router.openai import decoded, text_field

# Same name and meaning in both APIs.
_SAME = ("temperature", "top_p", "top_k", "service_tier", "priority", "cache_salt", "chat_template_kwargs")
# What switches thinking on and off in the templates of models that can do both; others do not look.
_SWITCHES = ("enable_thinking", "thinking")


class Ask(msgspec.Struct, kw_only=True):
    model: str
    messages: list[dict[str, Any]]
    max_tokens: int | None = None
    system: str | list[dict[str, Any]] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None

    @property
    def hides_thoughts(self) -> bool:
        """That it thought is told, and not what."""
        return self.thinking is not None and self.thinking.get("display") == "omitted"


def decode(body: bytes, *, is_count: bool = False) -> tuple[Ask, bytes]:
    """The request and its chat body. Only a count of tokens may leave out `max_tokens`."""
    fields, ask = decoded(body, Ask)
    if ask.max_tokens is None and not is_count:
        raise InvalidRequest("The field `max_tokens` is required.", param="max_tokens")
    return ask, msgspec.json.encode(_chat(ask, fields))


def _chat(ask: Ask, fields: Mapping[str, Any]) -> dict[str, Any]:
    body: dict[str, Any] = {"model": ask.model, "messages": _messages(ask)}
    body |= {name: fields[name] for name in _SAME if fields.get(name) is not None}
    if ask.max_tokens is not None:
        body["max_tokens"] = ask.max_tokens
    if ask.stop_sequences:
        body["stop"] = ask.stop_sequences
    if ask.stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    if ask.tools:
        body["tools"] = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(ask.tools)]
        if ask.tool_choice is not None:
            body |= _tool_choice(ask.tool_choice)
    if (wanted := _wants_thoughts(ask)) is not None:
        body["chat_template_kwargs"] = dict.fromkeys(_SWITCHES, wanted) | (fields.get("chat_template_kwargs") or {})
    if ask.metadata and isinstance(ask.metadata.get("user_id"), str):
        body["user"] = ask.metadata["user_id"]
    return body


def _wants_thoughts(ask: Ask) -> bool | None:
    """None: as the model is used to. A budget is the model's own matter; `max_tokens` bounds it."""
    if ask.thinking is None:
        return None
    match ask.thinking.get("type"):
        case "enabled":
            budget = ask.thinking.get("budget_tokens")
            if type(budget) is not int or budget < 1:
                where = "thinking.budget_tokens"
                raise InvalidRequest(f"`{where}` must be a number of tokens.", param=where)
            if ask.max_tokens is not None and budget >= ask.max_tokens:
                where = "thinking.budget_tokens"
                raise InvalidRequest(f"`{where}` must be less than `max_tokens`.", param=where)
            return True
        case "disabled":
            return False
        case "adaptive" | "between_tools":
            return None
    raise InvalidRequest("`thinking.type` must be enabled, disabled or adaptive.", param="thinking.type")


def _messages(ask: Ask) -> list[dict[str, Any]]:
    if not ask.messages:
        raise InvalidRequest("`messages` must hold at least one message.", param="messages")
    told: list[dict[str, Any]] = []
    if ask.system:
        told.append({"role": "system", "content": _text_of(ask.system, "system")})
    for i, message in enumerate(ask.messages):
        where = f"messages[{i}]"
        match message.get("role"):
            case "user":
                told += _user(message.get("content"), where)
            case "assistant":
                told.append(_assistant(message.get("content"), where))
            case _:
                raise InvalidRequest(f"`{where}.role` must be user or assistant.", param=f"{where}.role")
    return told


def _user(content: Any, where: str) -> list[dict[str, Any]]:
    """Results of tools are messages of their own, and come first, as chat has them."""
    if isinstance(content, str):
        return [{"role": "user", "content": content}]
    results: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    for i, block in enumerate(_blocks(content, where)):
        place = f"{where}.content[{i}]"
        match block.get("type"):
            case "text":
                parts.append({"type": "text", "text": text_field(block, "text", place)})
            case "image":
                parts.append({"type": "image_url", "image_url": {"url": _image(block.get("source"), place)}})
            case "tool_result":
                shown = _text_of(block.get("content") or "", f"{place}.content")
                results.append(
                    {"role": "tool", "tool_call_id": text_field(block, "tool_use_id", place), "content": shown}
                )
            case other:
                raise _unsupported(place, other)
    if not parts:
        return results
    if all(part["type"] == "text" for part in parts):
        return [*results, {"role": "user", "content": "".join(str(part["text"]) for part in parts)}]
    return [*results, {"role": "user", "content": parts}]


def _assistant(content: Any, where: str) -> dict[str, Any]:
    if isinstance(content, str):
        return {"role": "assistant", "content": content}
    texts, thoughts, calls = [], [], []
    for i, block in enumerate(_blocks(content, where)):
        place = f"{where}.content[{i}]"
        match block.get("type"):
            case "text":
                texts.append(text_field(block, "text", place))
            case "tool_use":
                arguments = msgspec.json.encode(block.get("input") or {}).decode()
                function = {"name": text_field(block, "name", place), "arguments": arguments}
                calls.append({"id": text_field(block, "id", place), "type": "function", "function": function})
            case "thinking":
                thoughts.append(text_field(block, "thinking", place))
            case "redacted_thinking":
                pass
            case other:
                raise _unsupported(place, other)
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts) or None}
    if any(thoughts):  # templates drop those that no longer matter; those between calls must be said again
        message["reasoning_content"] = "".join(thoughts)
    return message | ({"tool_calls": calls} if calls else {})


def _blocks(content: Any, where: str) -> Sequence[Mapping[str, Any]]:
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise InvalidRequest(f"`{where}.content` must be a string or a list of blocks.", param=f"{where}.content")
    return content


def _text_of(content: Any, where: str) -> str:
    """A string, or blocks of text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest(f"`{where}` must be a string or a list of blocks.", param=where)
    return "".join(text_field(block, "text", f"{where}[{i}]") for i, block in enumerate(content))


def _image(source: Any, where: str) -> str:
    match source:
        case {"type": "url", "url": str(url)}:
            return url
        case {"type": "base64", "media_type": str(kind), "data": str(encoded)}:
            return f"data:{kind};base64,{encoded}"
    raise InvalidRequest(f"`{where}.source` must be a URL or base64.", param=f"{where}.source")


def _tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    if tool.get("type") not in (None, "custom"):
        raise InvalidRequest(f"`{where}.type` must be `custom`: hosted tools run at Anthropic.", param=f"{where}.type")
    function = {"name": text_field(tool, "name", where), "parameters": tool.get("input_schema") or {"type": "object"}}
    if tool.get("description"):
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


def _tool_choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    parallel = {"parallel_tool_calls": False} if choice.get("disable_parallel_tool_use") else {}
    match choice.get("type"):
        case "auto" | "none" as same:
            return {"tool_choice": same, **parallel}
        case "any":
            return {"tool_choice": "required", **parallel}
        case "tool":
            function = {"name": text_field(choice, "name", "tool_choice")}
            return {"tool_choice": {"type": "function", "function": function}, **parallel}
    raise InvalidRequest("`tool_choice.type` must be auto, any, tool or none.", param="tool_choice.type")


def _unsupported(where: str, kind: object) -> InvalidRequest:
    return InvalidRequest(f"`{where}` has the type `{kind}`, which is not supported.", param=f"{where}.type")
