"""Chat messages as templates take them. Knows OpenAI's content parts and tool calls; nothing of templates or tokens."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from xxhash import xxh3_128_digest

from pointsman.chat_template import plain_message, text_of_part

Messages = Sequence[Mapping[str, object]]

# Stands in the text where an image or the like stood; what that was is in the media keys.
MEDIA_MARK = "\N{OBJECT REPLACEMENT CHARACTER}"
_NOT_A_MARK = "\N{REPLACEMENT CHARACTER}"


def plain_messages(messages: Messages, *, takes_parts: bool = False) -> tuple[list[dict[str, Any]], list[bytes]]:
    """The messages with text for content, and the media keys: a hash of each part that is no text, in order.

    Content is made plain as engines do it; `takes_parts` is what the template says of itself. A part that is no text
    leaves a MEDIA_MARK; in a conversation that has one, marks in the client's own text are replaced, so that none is
    false.
    """
    media_keys = [_media_key(part) for message in messages for part in _parts(message) if text_of_part(part) is None]
    mark_in_text = _NOT_A_MARK if media_keys else MEDIA_MARK
    spell = partial(_line, mark_in_text=mark_in_text)
    if media_keys:
        messages = [_without_marks(message) for message in messages]
    return [plain_message(message, spell, takes_parts=takes_parts) for message in messages], media_keys


def keyed_content(content: object) -> object:
    """The content with the media key of each part that is no text in its place."""
    if not isinstance(content, list):
        return content
    return [{"media": _media_key(part).hex()} if text_of_part(part) is None else part for part in content]


def _parts(message: Mapping[str, object]) -> Sequence[object]:
    content = message.get("content")
    return content if isinstance(content, list) else ()


def _media_key(part: object) -> bytes:
    return xxh3_128_digest(msgspec.json.encode(part, order="deterministic"))


def _without_marks(message: Mapping[str, object]) -> Mapping[str, object]:
    content = message.get("content")
    return {**message, "content": content.replace(MEDIA_MARK, _NOT_A_MARK)} if isinstance(content, str) else message


def _line(part: object, mark_in_text: str) -> str:
    text = text_of_part(part)
    return MEDIA_MARK if text is None else text.replace(MEDIA_MARK, mark_in_text)
