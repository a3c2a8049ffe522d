"""OpenAI requests, from JSON to what the engine runs.

Knows the fields that clients send, which of them the engine honours, and how to say no by name. Must not know how
requests are computed or how answers are written.
"""

import re
import secrets
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from engine.sampling import Sampling
from engine.server.errors import ApiError, bad_request

_Count = Annotated[int, Meta(ge=1)]
_Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_Messages = Annotated[list[dict[str, Any]], Meta(min_length=1)]
_TokenId = Annotated[int, Meta(ge=0, lt=2**32)]

_DEFAULT_COMPLETION_TOKENS = 16
# Below this, dividing logits by the temperature overflows; the choice is the greedy one long before.
_GREEDY_BELOW = 1e-5

# What changes nothing in the answer: notes to the provider, caches and routers.
_HINTS = frozenset(
    {
        *("user", "safety_identifier", "metadata", "store", "service_tier"),
        *("prompt_cache_key", "prompt_cache_retention", "parallel_tool_calls", "request_id"),
    }
)
# What the engine lacks, with the values that ask for nothing; null never does.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "echo": (False,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "logit_bias": ({},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "add_generation_prompt": (True,),
    "add_special_tokens": (True,),
}
_OF_UNKNOWN = (False,)
_TEMPLATE_RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"})

_PATH = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
_MISSING = re.compile(r"missing required field `(?P<field>\w+)`")


class StreamOptions(Struct):
    include_usage: bool = False


class _Common(Struct, kw_only=True):
    model: str
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: _Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    seed: _Seed | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[_TokenId] | None = None
    ignore_eos: bool | None = False
    priority: Annotated[int, Meta(ge=-(2**31), lt=2**31)] | None = None
    cache_salt: str | None = None

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class ChatRequest(_Common, kw_only=True):
    messages: _Messages
    max_completion_tokens: _Count | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class CompletionRequest(_Common, kw_only=True):
    prompt: str | list[Any]


class TokenizeRequest(Struct, kw_only=True):
    model: str | None = None
    prompt: str | None = None
    messages: _Messages | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeRequest(Struct, kw_only=True):
    tokens: list[_TokenId]
    model: str | None = None


GenerationRequest = ChatRequest | CompletionRequest
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
        return msgspec.convert(fields, shape)
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error)) from None


def sampling_of(
    request: GenerationRequest, num_prompt_tokens: int, max_model_len: int, eos_token_ids: frozenset[int]
) -> Sampling:
    """Raises ApiError (400) when prompt and answer do not fit the context, or the limits contradict."""
    max_tokens = _max_tokens(request, num_prompt_tokens, max_model_len)
    min_tokens = request.min_tokens or 0
    if min_tokens > max_tokens:
        raise bad_request(f"min_tokens ({min_tokens}) is more than max_tokens ({max_tokens})", "min_tokens")
    temperature = _or(request.temperature, 1.0)
    return Sampling(
        max_tokens=max_tokens,
        seed=_or(request.seed, secrets.randbits(63)),
        temperature=temperature if temperature >= _GREEDY_BELOW else 0.0,
        top_p=_or(request.top_p, 1.0),
        top_k=request.top_k if request.top_k and request.top_k > 0 else None,
        min_p=_or(request.min_p, 0.0),
        min_tokens=min_tokens,
        eos_token_ids=frozenset() if request.ignore_eos else eos_token_ids,
        stop_token_ids=frozenset(request.stop_token_ids or ()),
        stop=_stop_strings(request.stop),
    )


def check_chat(messages: list[dict[str, Any]], template_kwargs: dict[str, Any] | None) -> None:
    """What the shape leaves open. Raises ApiError (400)."""
    for index, message in enumerate(messages):
        if not isinstance(message.get("role"), str):
            raise bad_request(f"messages[{index}].role must be a string", f"messages[{index}].role")
    for name in _TEMPLATE_RESERVED & (template_kwargs or {}).keys():
        raise bad_request(f"chat_template_kwargs must not set {name}", "chat_template_kwargs")


def prompt_of(request: CompletionRequest) -> str | list[int]:
    """The one prompt of a completion: text, token ids, or a list with one of these."""
    prompt = request.prompt
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return prompt
    if len(prompt) > 1 and any(isinstance(item, str | list) for item in prompt):
        raise bad_request("several prompts in one request are not supported by this engine", "prompt")
    try:
        return msgspec.convert(prompt, list[_TokenId])
    except msgspec.ValidationError as error:
        raise bad_request(f"prompt must be text or token ids: {error}", "prompt") from None


def _refuse_unsupported(fields: dict[str, Any], honoured: frozenset[str]) -> None:
    for name in fields.keys() - honoured - _HINTS:
        value = fields[name]
        if value is not None and not _is_among(value, _NEUTRAL.get(name, _OF_UNKNOWN)):
            raise bad_request(f"{name} is not supported by this engine", name, "unsupported_parameter")


def _is_among(value: Any, neutral: tuple[Any, ...]) -> bool:
    """Equal to one of them; but 0 is not False, nor 1 True."""
    return any(value == item and isinstance(value, bool) == isinstance(item, bool) for item in neutral)


def _wrong_field(message: str) -> ApiError:
    path = _PATH.search(message)
    name = path["path"] if path else ""
    if missing := _MISSING.search(message):
        name = f"{name}.{missing['field']}" if name else missing["field"]
        return bad_request(f"{name} is missing", name)
    return bad_request(f"{name}: {_PATH.sub('', message)}", name)


def _max_tokens(request: GenerationRequest, num_prompt_tokens: int, max_model_len: int) -> int:
    room = max_model_len - num_prompt_tokens
    asked = request.max_tokens
    if isinstance(request, ChatRequest) and request.max_completion_tokens is not None:
        asked = request.max_completion_tokens
    if room < 1 or (asked or 0) > room:
        wish = f" and {asked} of answer" if asked else ""
        raise bad_request(
            f"the context is {max_model_len} tokens, too few for {num_prompt_tokens} of prompt{wish}",
            "messages" if isinstance(request, ChatRequest) else "prompt",
            "context_length_exceeded",
        )
    default = room if isinstance(request, ChatRequest) else min(room, _DEFAULT_COMPLETION_TOKENS)
    return default if asked is None else asked


def _stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if "" in strings:
        raise bad_request("stop must not hold an empty string", "stop")
    return strings


_Value = TypeVar("_Value")


def _or(value: _Value | None, default: _Value) -> _Value:
    return default if value is None else value
