"""gRPC requests as the bodies of OpenAI's API, so that a call is served by the same path as any other request.

Knows the two contracts' fields; knows nothing of calls, metadata or answers. What is not set is not sent: the engine's
default holds. Raises InvalidRequest that names the field.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from google.protobuf.json_format import MessageToDict
from google.protobuf.struct_pb2 import Struct

from pointsman.v1.common_pb2 import Sampling
from pointsman.v1.inference_pb2 import (
    ChatMessage,
    ChatRequest,
    CompleteRequest,
    ContentPart,
    EmbedRequest,
    SessionOpen,
    ToolCall,
)
from router.errors import InvalidRequest

# Streams are asked for their usage: the last event of a call has it.
_STREAM: Mapping[str, object] = {"stream": True, "stream_options": {"include_usage": True}}
_SAMPLING_FLOATS = ("temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty")
_SAMPLING_NUMBERS = ("max_tokens", "min_tokens", "top_k", "seed", *_SAMPLING_FLOATS)


def chat_body(request: ChatRequest, *, is_stream: bool) -> bytes:
    return _body(_fields(request) | {"messages": messages(request.messages)}, is_stream)


def complete_body(request: CompleteRequest, *, is_stream: bool) -> bytes:
    kind = request.WhichOneof("prompt")
    if kind is None:
        raise InvalidRequest("Either `text` or `tokens` is required.", param="prompt")
    prompt = request.text if kind == "text" else list(request.tokens.ids)
    return _body(_common(request) | {"prompt": prompt}, is_stream)


def embed_body(request: EmbedRequest) -> bytes:
    if not request.texts:
        raise InvalidRequest("`texts` must hold at least one text.", param="texts")
    fields: dict[str, object] = {"model": _model(request.model), "input": list(request.texts)}
    if request.HasField("dimensions"):
        fields["dimensions"] = request.dimensions
    return msgspec.json.encode(fields)


def messages(told: Sequence[ChatMessage]) -> list[dict[str, object]]:
    if not told:
        raise InvalidRequest("`messages` must hold at least one message.", param="messages")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(told)]


def plain(struct: Struct) -> dict[str, Any]:
    """A Struct as JSON has it. Its numbers are all floats: whole ones become integers again."""
    whole: dict[str, Any] = _whole(MessageToDict(struct))
    return whole


def session_fields(opened: SessionOpen) -> dict[str, object]:
    """What every body of a session has besides its messages."""
    return _fields(opened)


def _model(model: str) -> str:
    if not model:
        raise InvalidRequest("The field `model` is required.", param="model")
    return model


def _fields(request: ChatRequest | SessionOpen) -> dict[str, object]:
    fields = _common(request)
    if request.tools:
        fields["tools"] = [plain(tool) for tool in request.tools]
    if request.HasField("template_options"):
        fields["chat_template_kwargs"] = plain(request.template_options)
    return fields


def _common(request: ChatRequest | CompleteRequest | SessionOpen) -> dict[str, object]:
    fields = {"model": _model(request.model)} | sampling(request.sampling)
    if request.HasField("cache_salt"):
        fields["cache_salt"] = request.cache_salt
    return fields


def _body(fields: dict[str, object], is_stream: bool) -> bytes:
    return msgspec.json.encode({**fields, **(_STREAM if is_stream else {})})


def sampling(asked: Sampling) -> dict[str, object]:
    fields: dict[str, object] = {name: getattr(asked, name) for name in _SAMPLING_NUMBERS if asked.HasField(name)}
    for name in _SAMPLING_FLOATS:
        if name in fields:
            fields[name] = _shortest(fields[name])
    if asked.logit_bias:
        fields["logit_bias"] = {str(token_id): _shortest(bias) for token_id, bias in asked.logit_bias.items()}
    if asked.stop:
        fields["stop"] = list(asked.stop)
    if asked.stop_token_ids:
        fields["stop_token_ids"] = list(asked.stop_token_ids)
    if asked.ignore_eos:
        fields["ignore_eos"] = True
    return fields


def _shortest(value: object) -> float:
    """A 32-bit float as its shortest decimal, not as the 64-bit float next to it."""
    return float(f"{value:.7g}")


def _message(message: ChatMessage, where: str) -> dict[str, object]:
    if not message.role:
        raise InvalidRequest(f"`{where}.role` is required.", param=f"{where}.role")
    fields: dict[str, object] = {"role": message.role, "content": _content(message.parts, where)}
    if message.tool_calls:
        fields["tool_calls"] = [_tool_call(call) for call in message.tool_calls]
    for name in ("tool_call_id", "name"):
        if value := getattr(message, name):
            fields[name] = value
    return fields


def _content(parts: Iterable[ContentPart], where: str) -> str | list[dict[str, object]] | None:
    """Text alone is a string, as most engines' templates want it; null where there is nothing."""
    shown = [_part(part, f"{where}.parts[{i}]") for i, part in enumerate(parts)]
    if not shown:
        return None
    if len(shown) == 1 and shown[0]["type"] == "text":
        return str(shown[0]["text"])
    return shown


def _part(part: ContentPart, where: str) -> dict[str, object]:
    match part.WhichOneof("part"):
        case "text":
            return {"type": "text", "text": part.text}
        case "image_url":
            return {"type": "image_url", "image_url": {"url": part.image_url}}
    raise InvalidRequest(f"`{where}` is empty.", param=where)


def _tool_call(call: ToolCall) -> dict[str, object]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _whole(each) for key, each in value.items()}
    return [_whole(each) for each in value] if isinstance(value, list) else value
