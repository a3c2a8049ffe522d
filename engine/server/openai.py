"""The shapes of OpenAI's requests, with what vLLM adds to them.

Knows each field's name, type and range, and what a prompt may be. Must not know how requests are computed or how
answers are written.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from engine.kv_wire import KvTransferParams
from engine.server.errors import bad_request

MAX_TOP_LOGPROBS = 20
MAX_ANSWERS = 1024

TokenId = Annotated[int, Meta(ge=0, lt=2**32)]
_Count = Annotated[int, Meta(ge=1)]
_Flag = bool | None
_Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Bias = Annotated[float, Meta(ge=-100, le=100)]
_TopLogprobs = Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)]
_Stop = Annotated[str, Meta(min_length=1, max_length=1024)]
_Messages = Annotated[list[dict[str, Any]], Meta(min_length=1)]
_Object = dict[str, Any]
_Choices = Annotated[list[str], Meta(min_length=1)]


class StreamOptions(Struct, forbid_unknown_fields=True):
    """`include_obfuscation` pads events against listeners; only its absence can be had here."""

    include_usage: _Flag = False
    include_obfuscation: Literal[False] | None = None


class StructuredOutputs(Struct, forbid_unknown_fields=True):
    """vLLM's own spelling of what an output must keep to; one of them."""

    json: str | _Object | None = None
    regex: str | None = None
    choice: _Choices | None = None
    grammar: str | None = None
    json_object: _Flag = None


class JsonSchemaFormat(Struct):
    name: str | None = None
    description: str | None = None
    schema: _Object | bool | None = None
    strict: _Flag = None


class ResponseFormat(Struct, forbid_unknown_fields=True):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class GenerationFields(Struct, kw_only=True):
    """What both kinds of generation have in common."""

    model: str
    stream: _Flag = False
    stream_options: StreamOptions | None = None
    n: _Count | None = None
    best_of: _Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None
    frequency_penalty: _Penalty | None = None
    presence_penalty: _Penalty | None = None
    logit_bias: dict[TokenId, _Bias] | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    seed: _Seed | None = None
    stop: _Stop | Annotated[list[_Stop], Meta(max_length=64)] | None = None
    stop_token_ids: list[TokenId] | None = None
    include_stop_str_in_output: _Flag = False
    ignore_eos: _Flag = False
    skip_special_tokens: _Flag = True
    priority: Annotated[int, Meta(ge=-(2**31), lt=2**31)] | None = None
    cache_salt: str | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | _Object | None = None
    guided_regex: str | None = None
    guided_choice: _Choices | None = None
    guided_grammar: str | None = None
    kv_transfer_params: KvTransferParams | None = None

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def num_choices(self) -> int:
        return self.n or 1


class Function(Struct):
    name: Annotated[str, Meta(pattern=r"^[\w.:-]{1,256}$")]
    description: str | None = None
    parameters: _Object | None = None
    strict: _Flag = None


class Tool(Struct):
    type: Literal["function"]
    function: Function


class NamedFunction(Struct):
    name: str


class NamedTool(Struct):
    type: Literal["function"]
    function: NamedFunction


class ChatRequest(GenerationFields, kw_only=True):
    messages: _Messages
    tools: list[_Object] | None = None
    documents: list[_Object] | None = None
    chat_template_kwargs: _Object | None = None
    add_generation_prompt: _Flag = None
    continue_final_message: _Flag = None
    max_tokens: _Count | None = None
    max_completion_tokens: _Count | None = None
    logprobs: _Flag = False
    top_logprobs: _TopLogprobs | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: _Flag = True


class CompletionRequest(GenerationFields, kw_only=True):
    """`max_tokens` may be 0 with `echo`: only the prompt is looked at."""

    prompt: str | list[Any]
    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    logprobs: _TopLogprobs | None = None
    echo: _Flag = False
    add_special_tokens: _Flag = True


class EmbeddingRequest(Struct, kw_only=True):
    model: str
    input: str | list[Any]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: _Count | None = None
    priority: Annotated[int, Meta(ge=-(2**31), lt=2**31)] | None = None
    cache_salt: str | None = None


class TokenizeRequest(Struct, kw_only=True):
    """Text as `prompt`, or a chat."""

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: _Flag = None
    return_token_strs: _Flag = False
    messages: _Messages | None = None
    tools: list[_Object] | None = None
    documents: list[_Object] | None = None
    chat_template_kwargs: _Object | None = None
    add_generation_prompt: _Flag = None
    continue_final_message: _Flag = None


class DetokenizeRequest(Struct, kw_only=True):
    tokens: list[TokenId]
    model: str | None = None


GenerationRequest = ChatRequest | CompletionRequest
Prompt = str | list[int]


def prompts_of(given: str | list[Any], param: str, *, num_choices: int = 1) -> list[Prompt]:
    """Text, token ids, or a list of either, each to be answered `num_choices` times. Raises ApiError (400)."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise bad_request(f"{param} is empty", param)
    if not isinstance(given[0], str | list):
        return [_token_ids(given, param)]
    if len(given) * num_choices > MAX_ANSWERS:
        asked = f"{param} asks for {len(given)} times {num_choices} answers"
        raise bad_request(f"{asked}; one request gets {MAX_ANSWERS} answers at most", param)
    return [
        prompt if isinstance(prompt, str) else _token_ids(prompt, f"{param}[{index}]")
        for index, prompt in enumerate(given)
    ]


def _token_ids(given: Any, param: str) -> list[int]:
    try:
        return msgspec.convert(given, list[TokenId])
    except msgspec.ValidationError as error:
        raise bad_request(f"{param} must be text or token ids: {error}", param) from None
