"""From a request's options to the engine's Sampling.

Knows defaults, and which options contradict each other, the context or the vocabulary. Must not know JSON, HTTP or
how tokens are chosen.
"""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from engine.sampling import Sampling
from engine.server.errors import bad_request
from engine.server.openai import ChatRequest, CompletionRequest, GenerationFields, GenerationRequest

_DEFAULT_COMPLETION_TOKENS = 16
# Below this, dividing logits by the temperature overflows; the choice is the greedy one long before.
_GREEDY_BELOW = 1e-5


@dataclass(frozen=True, slots=True)
class Limits:
    """What one engine can do: tokens of context, ids below `vocab_size`, choices that fit in one batch."""

    max_model_len: int
    vocab_size: int
    max_num_seqs: int
    eos_token_ids: frozenset[int]


def check_choices(request: GenerationFields, limits: Limits) -> None:
    """Raises ApiError (400) for more choices than the engine has slots."""
    if request.num_choices > limits.max_num_seqs:
        raise bad_request(f"n is {request.n}; this engine computes {limits.max_num_seqs} at once, at most", "n")
    if request.best_of not in (None, request.num_choices):
        raise bad_request("best_of must be equal to n", "best_of", "unsupported_parameter")


def sampling_of(request: GenerationRequest, num_prompt_tokens: int, limits: Limits) -> Sampling:
    """Raises ApiError (400) when prompt and answer do not fit the context, or options contradict each other."""
    max_tokens = _max_tokens(request, num_prompt_tokens, limits.max_model_len)
    min_tokens = request.min_tokens or 0
    if min_tokens > max_tokens:
        raise bad_request(f"min_tokens ({min_tokens}) is more than max_tokens ({max_tokens})", "min_tokens")
    _check_ids(request.stop_token_ids or (), "stop_token_ids", limits)
    _check_ids(request.logit_bias or (), "logit_bias", limits)
    temperature = _or(request.temperature, 1.0)
    return Sampling(
        max_tokens=max_tokens,
        seed=_or(request.seed, secrets.randbits(63)),
        temperature=temperature if temperature >= _GREEDY_BELOW else 0.0,
        top_p=_or(request.top_p, 1.0),
        top_k=request.top_k if request.top_k and request.top_k > 0 else None,
        min_p=_or(request.min_p, 0.0),
        min_tokens=min_tokens,
        eos_token_ids=frozenset() if request.ignore_eos else limits.eos_token_ids,
        stop_token_ids=frozenset(request.stop_token_ids or ()),
        stop=(request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ()),
        repetition_penalty=_or(request.repetition_penalty, 1.0),
        frequency_penalty=_or(request.frequency_penalty, 0.0),
        presence_penalty=_or(request.presence_penalty, 0.0),
        logit_bias=tuple((request.logit_bias or {}).items()),
        num_top_logprobs=_num_top_logprobs(request),
        wants_prompt_logprobs=wants_echo(request) and _num_top_logprobs(request) is not None,
    )


def wants_echo(request: GenerationRequest) -> bool:
    return isinstance(request, CompletionRequest) and bool(request.echo)


def _num_top_logprobs(request: GenerationRequest) -> int | None:
    if isinstance(request, CompletionRequest):
        return request.logprobs
    if request.top_logprobs and not request.logprobs:
        raise bad_request("top_logprobs needs logprobs to be true", "top_logprobs")
    return request.top_logprobs or 0 if request.logprobs else None


def _max_tokens(request: GenerationRequest, num_prompt_tokens: int, max_model_len: int) -> int:
    room = max_model_len - num_prompt_tokens
    asked, field = request.max_tokens, "max_tokens"
    if isinstance(request, ChatRequest) and request.max_completion_tokens is not None:
        asked, field = request.max_completion_tokens, "max_completion_tokens"
    if room < 1:
        field = "messages" if isinstance(request, ChatRequest) else "prompt"
    if room < 1 or (asked or 0) > room:
        wish = f" and {asked} of answer" if asked else ""
        raise bad_request(
            f"the context is {max_model_len} tokens, too few for {num_prompt_tokens} of prompt{wish}",
            field,
            "context_length_exceeded",
        )
    if asked == 0 and not wants_echo(request):
        raise bad_request("max_tokens must be at least 1, or 0 with echo", "max_tokens")
    default = room if isinstance(request, ChatRequest) else min(room, _DEFAULT_COMPLETION_TOKENS)
    # A prompt alone is looked at by way of one token that nobody sees.
    return default if asked is None else max(asked, 1)


def _check_ids(token_ids: Iterable[int], param: str, limits: Limits) -> None:
    unknown = [token_id for token_id in token_ids if token_id >= limits.vocab_size]
    if unknown:
        raise bad_request(f"{param}: token id {unknown[0]} is not below {limits.vocab_size}", param)


_Value = TypeVar("_Value")


def _or(value: _Value | None, default: _Value) -> _Value:
    return default if value is None else value
