"""Wire shapes of OpenAI's API, both sides: peeked fields, byte edits, error bodies, SSE framing.

Knows JSON and OpenAI's words; knows nothing of sockets, replicas or time. A body is decoded once, and only the fields
that routing needs; unknown fields pass through untouched.
"""

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from router.core import Surface, Usage
from router.errors import InvalidRequest, PointsmanError, UpstreamStatus

T = TypeVar("T")

MAX_RETRY_AFTER_S = 60.0


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class Peek(msgspec.Struct, kw_only=True):
    """The fields of a chat or completion body that the router reads. Names and types are OpenAI's."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    max_completion_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    messages: list[dict[str, Any]] | None = None
    prompt: str | list[Any] | None = None
    input: str | list[Any] | None = None
    tools: list[Any] | None = None
    documents: list[Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    cache_salt: str | None = None
    prompt_cache_key: Any = None
    previous_response_id: Any = None
    user: Any = None
    safety_identifier: Any = None
    priority: int | None = None
    service_tier: str | None = None
    timeout: float | None = None

    @property
    def has_options(self) -> bool:
        """Is there anything among the `template_options`?"""
        named = (self.tools, self.documents, self.add_generation_prompt, self.continue_final_message)
        return named != _NO_OPTIONS or self.chat_template_kwargs is not None

    @property
    def template_options(self) -> Mapping[str, object]:
        return template_options(
            self.chat_template_kwargs,
            tools=self.tools,
            documents=self.documents,
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
        )


def template_options(kwargs: Mapping[str, object] | None, **named: object) -> Mapping[str, object]:
    """What the chat template is rendered with besides the messages; names as engines give them to it."""
    given = {name: value for name, value in named.items() if value is not None}
    return given if kwargs is None else {**kwargs, **given}


_CONTENTS = (str, list, type(None))
_NO_OPTIONS = (None, None, None, None)
_PEEK = msgspec.json.Decoder(Peek)
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_PATH = re.compile(r"`\$\.?([^`]*)`")
_MISSING = re.compile(r"missing required field `(\w+)`")
_UNKNOWN = re.compile(r"unknown field `([^`]*)`")


def peek(body: bytes, surface: Surface) -> Peek:
    """Decode what routing needs. Raises InvalidRequest that names the field."""
    try:
        fields = _PEEK.decode(body)
    except msgspec.ValidationError as error:
        raise invalid_field(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.") from None
    if surface is Surface.CHAT:
        _check_messages(fields.messages)
    elif surface is Surface.COMPLETIONS:
        _check_prompt(fields.prompt, "prompt")
    else:
        _check_prompt(fields.input, "input")
    return fields


def decoded(body: bytes, kind: type[T]) -> tuple[dict[str, Any], T]:
    """A body's fields, and as this type of struct. Raises InvalidRequest that names the field."""
    try:
        fields = msgspec.json.decode(body)
        return fields, msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise invalid_field(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.") from None


def invalid_field(message: str) -> InvalidRequest:
    """What msgspec says of a body, in words that name the field."""
    if missing := _MISSING.search(message):
        return InvalidRequest(f"The field `{missing[1]}` is required.", param=missing[1])
    if unknown := _UNKNOWN.search(message):
        return InvalidRequest(f"The field `{unknown[1]}` is not supported.", param=unknown[1])
    path = _PATH.search(message)
    if path is None:
        return InvalidRequest(f"The body must be a JSON object: {message}.")
    return InvalidRequest(f"{message.split(' - at ')[0]} in `{path[1]}`.", param=path[1])


def _check_messages(messages: list[dict[str, Any]] | None) -> None:
    if messages is None:
        raise InvalidRequest("The field `messages` is required.", param="messages")
    if not messages:
        raise InvalidRequest("`messages` must hold at least one message.", param="messages")
    for i, message in enumerate(messages):
        if not isinstance(message.get("role"), str):
            raise InvalidRequest(f"`messages[{i}].role` must be a string.", param=f"messages[{i}].role")
        if not isinstance(message.get("content"), _CONTENTS):
            where = f"messages[{i}].content"
            raise InvalidRequest(f"`{where}` must be a string, a list of parts or null.", param=where)


def _check_prompt(prompt: object, name: str) -> None:
    if prompt is None:
        raise InvalidRequest(f"The field `{name}` is required.", param=name)
    if isinstance(prompt, list):
        if not prompt:
            raise InvalidRequest(f"`{name}` must not be empty.", param=name)
        is_batch = isinstance(prompt[0], str | list)
        texts_or_ids = prompt if is_batch else [prompt]
        if not all(isinstance(item, str) or _are_token_ids(item) for item in texts_or_ids):
            raise InvalidRequest(f"`{name}` must be a string, token ids, or a list of either.", param=name)


def _are_token_ids(item: object) -> bool:
    return isinstance(item, list) and bool(item) and all(type(i) is int and 0 <= i < 2**32 for i in item)


def text_field(item: Any, name: str, where: str) -> str:
    """The text of that name in a part of a body that is at `where`. Raises InvalidRequest."""
    value = item.get(name) if isinstance(item, dict) else None
    if not isinstance(value, str):
        raise InvalidRequest(f"`{where}.{name}` must be a string.", param=f"{where}.{name}")
    return value


def without_field(body: bytes, name: str) -> bytes:
    """The body less one top-level field; every other value keeps its very bytes."""
    fields = _FIELDS.decode(body)
    del fields[name]
    return msgspec.json.encode(fields)


def with_model(body: bytes, model: str) -> bytes:
    """The body with another model; every other value keeps its very bytes."""
    fields = _FIELDS.decode(body)
    fields["model"] = msgspec.Raw(msgspec.json.encode(model))
    return msgspec.json.encode(fields)


def with_usage(body: bytes) -> bytes:
    """A stream's body that asks for its usage; every other value keeps its very bytes."""
    fields = _FIELDS.decode(body)
    options = msgspec.json.decode(fields.get("stream_options", b"null")) or {}
    fields["stream_options"] = msgspec.Raw(msgspec.json.encode(options | {"include_usage": True}))
    return msgspec.json.encode(fields)


def without_usage(events: bytes) -> bytes:
    """Whole SSE events, less the one that tells the usage and nothing else."""
    if b'"usage"' not in events:
        return events
    return b"".join([event for event in split_events(events) if not _tells_usage_only(event)])


def split_events(events: bytes) -> list[bytes]:
    """Whole SSE events, one by one."""
    return _EVENT.findall(events)


def _tells_usage_only(event: bytes) -> bool:
    if not event.startswith(b"data:") or b'"usage"' not in event:
        return False
    try:
        chunk = _CHUNK.decode(event[5:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return chunk.choices == [] and chunk.usage is not None


def error_body(error: PointsmanError) -> bytes:
    """OpenAI's error body as JSON bytes; a replica's own words where it has said what is wrong."""
    if isinstance(error, UpstreamStatus):
        return error.body
    return msgspec.json.encode({"error": error_object(error)})


def error_object(error: PointsmanError) -> dict[str, object]:
    """OpenAI's error object: what an error body holds."""
    return {"message": error.message, "type": error.type, "param": error.param, "code": error.code}


def retry_after(error: PointsmanError) -> str | None:
    """The Retry-After header in whole seconds, at most 60: SDKs give up on longer ones."""
    if error.retry_after_s is None:
        return None
    return str(max(1, round(min(error.retry_after_s, MAX_RETRY_AFTER_S))))


def normalised_error(status: int, body: bytes) -> bytes:
    """A replica's error answer as an OpenAI error body: the same words, whatever shape it came in."""
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        answer = body.decode("utf-8", "replace")[:2000].strip()
    found = (answer.get("error") or answer) if isinstance(answer, dict) else answer
    if not isinstance(found, dict):
        found = {"message": found}
    message = found.get("message") or found.get("detail") or found.get("msg") or f"The replica answered {status}."
    kind = found.get("type") or ("invalid_request_error" if status < 500 else "upstream_error")
    words = {"message": message, "type": kind, "param": found.get("param"), "code": found.get("code")}
    return msgspec.json.encode({"error": {name: _text(value) for name, value in words.items()}})


def _text(value: object) -> str | None:
    """SDKs expect text: engines also say `"code": 400`, or a list of what is wrong."""
    return value if value is None or isinstance(value, str) else json.dumps(value)


def sse_error(error: PointsmanError) -> bytes:
    """What ends a stream that failed: an error event, then [DONE]; never an invented finish_reason."""
    return b"data: " + error_body(error) + b"\n\ndata: [DONE]\n\n"


def sse_comment(text: str) -> bytes:
    """A comment of its own: SDKs skip it, proxies see a live stream."""
    return f": {text}\n\n".encode()


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _UsageFields(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Answer(msgspec.Struct):
    usage: _UsageFields | None = None


_EVENT = re.compile(rb".+?(?:\r?\n\r?\n|\Z)", re.DOTALL)


class _Chunk(msgspec.Struct):
    choices: list[msgspec.Raw] | None = None
    usage: dict[str, Any] | None = None


_CHUNK = msgspec.json.Decoder(_Chunk)
_ANSWER = msgspec.json.Decoder(_Answer)
_USAGE = re.compile(rb'"usage"\s*:\s*\{')


def usage_of(body: bytes) -> Usage | None:
    """The usage of an answer that is one JSON object, or the tail of one."""
    try:
        usage = _ANSWER.decode(body).usage
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return find_usage(body)
    if usage is None:
        return None
    details = usage.prompt_tokens_details
    return Usage(usage.prompt_tokens, None if details is None else details.cached_tokens, usage.completion_tokens)


def find_usage(payload: bytes) -> Usage | None:
    """The last usage object in a piece of an answer (JSON body or SSE events), None where there is none."""
    start = max((match.end() - 1 for match in _USAGE.finditer(payload)), default=None)
    if start is None:
        return None
    try:
        usage, _ = json.JSONDecoder().raw_decode(payload[start:].decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    details = usage.get("prompt_tokens_details") or {}
    return Usage(
        prompt_tokens=_count(usage.get("prompt_tokens")),
        cached_tokens=_count(details.get("cached_tokens")) if isinstance(details, dict) else None,
        output_tokens=_count(usage.get("completion_tokens")),
    )


def _count(value: object) -> int | None:
    return value if type(value) is int else None


MAX_HELD_BYTES = 64 * 1024
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n")
_DONE = re.compile(rb"(\A|\n\r?\n)data: ?\[DONE\]\r?\n\r?\n")


class EventStream:
    """Passes whole SSE events on and holds an incomplete tail, so that an error event can follow cleanly.

    `is_done` once [DONE] came; `usage` is the last one seen; `num_events` came so far. A single event over 64 KiB is
    passed in pieces.
    """

    __slots__ = ("_held", "_is_mid_event", "is_done", "num_events", "usage")

    def __init__(self) -> None:
        self._held = b""
        self._is_mid_event = False
        self.is_done = False
        self.num_events = 0
        self.usage: Usage | None = None

    def feed(self, payload: bytes) -> bytes:
        """The whole events that this payload completes, maybe none."""
        if self._held:
            payload, self._held = self._held + payload, b""
        if not payload.endswith(_EVENT_ENDS):
            cut = max((payload.rfind(end) + len(end) for end in _EVENT_ENDS if end in payload), default=0)
            if len(payload) - cut > MAX_HELD_BYTES:  # but not half of the blank line that may end it
                cut = len(payload) - len(payload[-3:]) + len(payload[-3:].rstrip(b"\r\n"))
            payload, self._held = payload[:cut], payload[cut:]
        if b'"usage"' in payload:
            self.usage = find_usage(payload) or self.usage
        if b"[DONE]" in payload and self._has_done(payload):
            self.is_done = True
        self.num_events += payload.count(b"\ndata:") + payload.startswith(b"data:")
        if payload:
            self._is_mid_event = not payload.endswith(_EVENT_ENDS)
        return payload

    def _has_done(self, whole: bytes) -> bool:
        """[DONE] counts as an event of its own only: not inside a text, nor in the rest of a long event."""
        return any(found[1] or not self._is_mid_event for found in _DONE.finditer(whole))
