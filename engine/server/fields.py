"""From a JSON body to a shape, refusing by name what is wrong, missing or not supported.

Knows which fields ask for nothing that the engine must do. Must not know what any shape is for.
"""

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from engine.server.errors import ApiError, bad_request

# What changes nothing in the answer: notes to the provider, caches and routers.
_HINTS = frozenset(
    {
        *("user", "safety_identifier", "metadata", "store", "service_tier", "request_id"),
        *("prompt_cache_key", "prompt_cache_retention", "guided_decoding_backend"),
    }
)
# What the engine lacks, with the values that ask for nothing; null never does.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "suffix": ("",),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "length_penalty": (1,),
    "spaces_between_special_tokens": (True,),
    "bad_words": ([],),
    "reasoning_effort": ("none",),
}
_OF_UNKNOWN = (False,)

_PATH = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
_KEY_PATH = re.compile(r" - at `key` in `\$\.?(?P<path>[^`]*)`$")
_MISSING = re.compile(r"missing required field `(?P<field>\w+)`")
_UNKNOWN = re.compile(r"contains unknown field `(?P<field>\w+)`")

_Shape = TypeVar("_Shape", bound=Struct)


def decode(body: bytes, shape: type[_Shape]) -> _Shape:
    """Raises ApiError (400) naming the field that is missing, of a wrong type, or not supported."""
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"the body is not valid JSON: {error}") from None
    if not isinstance(fields, dict):
        raise bad_request("the body must be a JSON object")
    _refuse_unsupported(fields, frozenset(shape.__struct_fields__))
    try:
        # Keys of objects are text in JSON, also where they stand for token ids.
        return msgspec.convert(fields, shape, str_keys=True)
    except msgspec.ValidationError as error:
        raise wrong_field(str(error)) from None


def _refuse_unsupported(fields: dict[str, Any], honoured: frozenset[str]) -> None:
    for name in fields.keys() - honoured - _HINTS:
        value = fields[name]
        if value is not None and not _is_among(value, _NEUTRAL.get(name, _OF_UNKNOWN)):
            raise bad_request(f"{name} is not supported by this engine", name, "unsupported_parameter")


def _is_among(value: Any, neutral: tuple[Any, ...]) -> bool:
    """Equal to one of them; but 0 is not False, nor 1 True."""
    return any(value == item and isinstance(value, bool) == isinstance(item, bool) for item in neutral)


def wrong_field(message: str, root: str = "") -> ApiError:
    """From msgspec's message about something in the field `root`, or in the body."""
    path = _PATH.search(message) or _KEY_PATH.search(message)
    name = root + (path["path"] if path else "")
    said = message[: path.start()] if path else message
    if missing := _MISSING.search(message):
        name = f"{name}.{missing['field']}" if name else missing["field"]
        return bad_request(f"{name} is missing", name)
    if unknown := _UNKNOWN.search(message):
        name = f"{name}.{unknown['field']}" if name else unknown["field"]
        return bad_request(f"{name} is not supported by this engine", name, "unsupported_parameter")
    return bad_request(f"{name}: {said}", name)
