"""How engines are told that one computes a prompt and another decodes: fields of both bodies. Knows OpenAI's bodies,
vLLM's `kv_transfer_params` (our engine's, too) and SGLang's bootstrap fields; knows no replicas and no sockets.

    vLLM     first: one token, `do_remote_decode`; its answer says where the KV lies; then: that, in the second body
    SGLang   both at once, with the same room; the first one's answer is of no use
"""

import secrets
from collections.abc import Mapping
from typing import Any

import msgspec

from router.core import Demand, Surface

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
# vLLM's connectors expect all of them.
_ASK = msgspec.Raw(
    msgspec.json.encode(
        {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "remote_engine_id": None,
            "remote_block_ids": None,
            "remote_host": None,
            "remote_port": None,
        }
    )
)
_ONE, _NO = msgspec.Raw(b"1"), msgspec.Raw(b"false")
# What makes no sense for one token that nobody reads.
_DROPPED = ("stream_options", "min_tokens", "max_completion_tokens", "logprobs", "top_logprobs")
BOOTSTRAP_PORT = 8998


class _Shape(msgspec.Struct):
    """Fields that speak against two replicas for one request."""

    n: int | None = None
    best_of: int | None = None
    echo: bool | None = None
    prompt_logprobs: int | None = None
    kv_transfer_params: Any = None
    bootstrap_room: Any = None
    prompt: Any = None


_shape = msgspec.json.Decoder(_Shape)


class _Answer(msgspec.Struct):
    kv_transfer_params: dict[str, Any] | None = None


_answer = msgspec.json.Decoder(_Answer)


def can_split(demand: Demand) -> bool:
    """Is it one prompt, with one answer, that its client leaves to us?"""
    request = demand.request
    if request.surface not in (Surface.CHAT, Surface.COMPLETIONS):
        return False
    try:
        shape = _shape.decode(request.body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False  # the engine will say what is wrong with it
    is_batch = isinstance(shape.prompt, list) and bool(shape.prompt) and not isinstance(shape.prompt[0], int)
    wants_more = shape.echo or shape.prompt_logprobs is not None or is_batch
    is_led = shape.kv_transfer_params is not None or shape.bootstrap_room is not None
    return (shape.n or 1) == 1 and (shape.best_of or 1) == 1 and not wants_more and not is_led


def first_body(body: bytes) -> bytes:
    """For who computes the prompt, vLLM's way; every other value keeps its very bytes."""
    fields = _FIELDS.decode(body)
    for name in _DROPPED:
        fields.pop(name, None)
    fields |= {"max_tokens": _ONE, "stream": _NO, "kv_transfer_params": _ASK}
    return msgspec.json.encode(fields)


def second_body(body: bytes, answer: bytes) -> bytes:
    """For who decodes, by what the first has answered. Raises ValueError where that says nothing of KV."""
    try:
        params = _answer.decode(answer).kv_transfer_params
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"its answer is no JSON object: {error}") from None
    if not params:
        raise ValueError("its answer has no `kv_transfer_params`: it hands out no KV")
    fields = _FIELDS.decode(body)
    fields["kv_transfer_params"] = msgspec.Raw(msgspec.json.encode(params))
    return msgspec.json.encode(fields)


def new_room() -> int:
    """No two requests that are open at the same time have the same."""
    return secrets.randbits(63)


def bootstrapped(body: bytes, host: str, port: int | None, room: int) -> bytes:
    """SGLang's body, the same for both."""
    fields = _FIELDS.decode(body)
    added: Mapping[str, object] = {
        "bootstrap_host": host,
        "bootstrap_port": BOOTSTRAP_PORT if port is None else port,
        "bootstrap_room": room,
    }
    fields |= {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in added.items()}
    return msgspec.json.encode(fields)
