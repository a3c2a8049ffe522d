"""Chat messages as templates take them. Knows OpenAI's content parts and tool calls; nothing of templates or tokens."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from xxhash import xxh3_128_digest

Messages = Sequence[Mapping[str, object]]

# Stands in the text where an image or the like stood; what that was is in the media keys.
MEDIA_MARK = "\N{OBJECT REPLACEMENT CHARACTER}"
_NOT_A_MARK = "\N{REPLACEMENT CHARACTER}"
_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})


def plain_messages(messages: Messages) -> tuple[list[dict[str, Any]], list[bytes]]:
    """The messages with text for content, and the media keys: a hash of each part that is no text, in order.

    Parts become lines and no content becomes "", as vLLM and the bundled engine do it. A part that is no text leaves
    a MEDIA_MARK; in a conversation that has one, marks in the client's own text are replaced, so that none is false.
    """
    media_keys = [_media_key(part) for message in messages for part in _parts(message) if _text_of(part) is None]
    mark_in_text = _NOT_A_MARK if media_keys else MEDIA_MARK
    return [_plain(message, mark_in_text) for message in messages], media_keys


def keyed_content(content: object) -> object:
    """The content with the media key of each part that is no text in its place."""
    if not isinstance(content, list):
        return content
    return [{"media": _media_key(part).hex()} if _text_of(part) is None else part for part in content]


def _parts(message: Mapping[str, object]) -> Sequence[object]:
    content = message.get("content")
    return content if isinstance(content, list) else ()


def _text_of(part: object) -> str | None:
    if isinstance(part, Mapping) and part.get("type") in _TEXT_PARTS:
        part = part.get("text")
    return part if isinstance(part, str) else None


def _media_key(part: object) -> bytes:
    return xxh3_128_digest(msgspec.json.encode(part, order="deterministic"))


def _plain(message: Mapping[str, object], mark_in_text: str) -> dict[str, Any]:
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(_line(part, mark_in_text) for part in content)
    elif isinstance(content, str) and mark_in_text != MEDIA_MARK:
        content = content.replace(MEDIA_MARK, mark_in_text)
    plain = {**message, "content": "" if content is None else content}
    if isinstance(calls := plain.get("tool_calls"), list):
        plain["tool_calls"] = [_with_parsed_arguments(call) for call in calls]
    return plain


def _line(part: object, mark_in_text: str) -> str:
    text = _text_of(part)
    return MEDIA_MARK if text is None else text.replace(MEDIA_MARK, mark_in_text)


def _with_parsed_arguments(call: Any) -> Any:
    """Clients send a call's arguments as JSON text; templates expect the object, as vLLM gives it to them."""
    try:
        function = call["function"]
        return {**call, "function": {**function, "arguments": json.loads(function["arguments"])}}
    except (KeyError, TypeError, ValueError, RecursionError):
        return call
