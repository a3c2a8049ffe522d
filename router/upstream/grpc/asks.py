"""What a body asks for, as far as replicas behind gRPC can be asked for it. Knows OpenAI's fields and vLLM's; knows no
messages, tokens or calls.

Nothing is ignored in silence: a field that no contract carries is refused by its name, so that a replica of the same
pool that is spoken to over HTTP may answer, or else the client hears which field it is.
"""

from array import array
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from router.core import Surface
from router.errors import InvalidRequest, UpstreamStatus
from router.openai import decoded, invalid_field, template_options

# Engines would learn nothing from these.
_OF_NO_ENGINE = frozenset(
    "user metadata store service_tier safety_identifier prompt_cache_key prompt_cache_retention parallel_tool_calls "
    "request_id timeout previous_response_id".split()
)
# Values that ask for nothing.
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "logprobs": (False,),
    "top_logprobs": (0,),
    "echo": (False,),
    "suffix": ("",),
    "tools": ([],),
    "functions": ([],),
    "modalities": (["text"],),
    "response_format": ({"type": "text"},),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
}
MAX_CALLS = 256
# As OpenAI has it; a chat may take what is left of the context.
DEFAULT_COMPLETION_TOKENS = 16

Count = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
Several = Annotated[int, msgspec.Meta(ge=1, le=MAX_CALLS)]
Seed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Text = Annotated[str, msgspec.Meta(min_length=1)]


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class Format(msgspec.Struct):
    """OpenAI's `response_format`."""

    type: Literal["json_object", "json_schema"]
    json_schema: dict[str, Any] | None = None


class Structure(msgspec.Struct, forbid_unknown_fields=True):
    """vLLM's `structured_outputs`."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class Transfer(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """`kv_transfer_params`, as our engine has them: where a prompt's KV lies, or that it is to be kept for another."""

    do_remote_decode: bool = False
    do_remote_prefill: bool = False
    remote_engine_id: str | None = None
    remote_block_ids: list[Count] | None = None
    remote_host: str | None = None
    remote_port: Annotated[int, msgspec.Meta(ge=0, lt=2**16)] | None = None


class Sampling(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What both kinds of generation have in common."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Several | None = None
    best_of: Several | None = None
    max_tokens: Count | None = None
    min_tokens: Count | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1, lt=2**31)] | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[Count, float] | None = None
    seed: Seed | None = None
    stop: Text | list[Text] | None = None
    stop_token_ids: list[Count] | None = None
    ignore_eos: bool | None = None
    cache_salt: str | None = None
    priority: Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)] | None = None
    response_format: Format | None = None
    structured_outputs: Structure | None = None
    kv_transfer_params: Transfer | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens


class Chat(Sampling, kw_only=True, forbid_unknown_fields=True):
    messages: list[dict[str, Any]]
    max_completion_tokens: Count | None = None
    documents: list[Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def template_options(self) -> Mapping[str, object]:
        return template_options(
            self.chat_template_kwargs,
            tools=self.tools,
            documents=self.documents,
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
        )


class Completion(Sampling, kw_only=True, forbid_unknown_fields=True):
    prompt: str | list[Any]
    add_special_tokens: bool | None = None


class Embeddings(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    model: str
    input: str | list[Any]
    encoding_format: Literal["float", "base64"] | None = None
    cache_salt: str | None = None
    priority: int | None = None


Body = Chat | Completion | Embeddings
_KINDS: Mapping[str, type[Body]] = {
    Surface.CHAT: Chat,
    Surface.COMPLETIONS: Completion,
    Surface.EMBEDDINGS: Embeddings,
}


def unsupported(name: str, why: str = "replicas that are spoken to over gRPC do not have it") -> UpstreamStatus:
    """A refusal that another replica may not share."""
    words = f"The field `{name}` is not supported: {why}."
    error = {"message": words, "type": "invalid_request_error", "param": name, "code": "unsupported_parameter"}
    refused = UpstreamStatus(400, msgspec.json.encode({"error": error}))
    refused.retryable = True
    return refused


def body_of(path: str, content: bytes) -> Body:
    """Raises InvalidRequest for what is wrong, UpstreamStatus for what cannot be asked for; both name the field."""
    fields, _ = decoded(content, dict[str, Any])
    asked = {name: value for name, value in fields.items() if value is not None and not _says_nothing(name, value)}
    if asked.get("best_of") == asked.get("n", 1):
        asked.pop("best_of", None)
    try:
        body = msgspec.convert(asked, _KINDS[path], str_keys=True)
    except msgspec.ValidationError as error:
        return _refuse(str(error))
    if isinstance(body, Chat) and body.tools and body.tool_choice != "none":
        raise unsupported("tools", "calls are not read out of answers that come over gRPC")
    return body


def prompts_of(given: str | Sequence[Any], name: str) -> "list[str | array[int]]":
    """Text, token ids, or a list of either. Raises InvalidRequest."""
    if isinstance(given, str):
        return [given]
    several: Sequence[Any] = given if given and isinstance(given[0], str | list) else [given]
    try:
        return [each if isinstance(each, str) else array("I", each) for each in several]
    except (TypeError, OverflowError):
        raise InvalidRequest(f"`{name}` must be a string, token ids, or a list of either.", param=name) from None


def _says_nothing(name: str, value: object) -> bool:
    return name in _OF_NO_ENGINE or any(
        value == each and type(value) is type(each)
        for each in _NEUTRAL.get(name, ())  # 0 is not False here
    )


def _refuse(message: str) -> Body:
    """Raises what msgspec's words come to."""
    _, found, rest = message.partition("unknown field `")
    if not found:
        raise invalid_field(message)
    raise unsupported(rest.partition("`")[0])
