"""engine.proto: what a body becomes there, and what its events say. Knows its messages; knows no calls."""

from array import array
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from google.protobuf.message import DecodeError

from pointsman.v1 import common_pb2, engine_pb2
from router.errors import BadAnswer
from router.upstream.grpc.answering import Call
from router.upstream.grpc.answers import Counts, Said
from router.upstream.grpc.asks import Chat, Completion, unsupported

_SERVICE = f"/{engine_pb2.DESCRIPTOR.services_by_name['Engine'].full_name}"
GENERATE, EMBED = f"{_SERVICE}/Generate", f"{_SERVICE}/Embed"
_AS_THEY_ARE = (
    *("min_tokens", "temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty"),
    *("stop_token_ids", "ignore_eos", "logit_bias"),
)
_REASONS: dict[int, str] = {
    common_pb2.FINISH_REASON_STOP: "stop",
    common_pb2.FINISH_REASON_LENGTH: "length",
    common_pb2.FINISH_REASON_TOOL_CALLS: "tool_calls",
    common_pb2.FINISH_REASON_CONTENT_FILTER: "content_filter",
    common_pb2.FINISH_REASON_ABORT: "abort",
}


def generating(
    body: Chat | Completion, prompts: "Sequence[str | array[int]]", request_id: str, adapter: str | None
) -> Iterator[Call]:
    """A call for each choice. Raises UpstreamStatus that names what the contract does not have."""
    for name in ("response_format", "structured_outputs"):
        if getattr(body, name) is not None:
            raise unsupported(name)
    for prompt_number, prompt in enumerate(prompts):
        for sample in range(body.n or 1):
            asked = engine_pb2.GenerateRequest(
                request_id=f"{request_id}-{prompt_number}-{sample}",
                sampling=_sampling(body, sample),
                adapter=adapter,
                cache_salt=body.cache_salt,
                priority=body.priority or 0,
            )
            if isinstance(prompt, str):
                asked.text = prompt
            else:
                asked.token_ids.extend(prompt)
            if body.kv_transfer_params is not None:
                asked.kv_transfer.CopyFrom(engine_pb2.KvTransfer(**msgspec.to_builtins(body.kv_transfer_params)))
            yield Call(GENERATE, asked.SerializeToString())


def embedding(texts: "Sequence[str | array[int]]") -> Iterator[Call]:
    """One call for all texts. Raises UpstreamStatus for tokens: the replica takes texts."""
    if not all(isinstance(text, str) for text in texts):
        raise unsupported("input", "replicas that are spoken to over gRPC take texts, no token ids")
    yield Call(EMBED, engine_pb2.VectorsRequest(texts=[str(text) for text in texts]).SerializeToString())


def said(_: int, message: bytes) -> Said:
    """What an event says. Raises BadAnswer."""
    try:
        event = engine_pb2.GenerateEvent.FromString(message)
    except DecodeError as error:
        raise BadAnswer(f"The replica sent an event that is none: {error}.") from None
    counts = None
    if event.HasField("usage"):
        usage = event.usage
        counts = Counts(usage.prompt_tokens, usage.cached_tokens, usage.output_tokens)
    if not event.finish_reason:
        return Said(event.text, counts=counts)
    by = event.WhichOneof("stopped_by")
    kept = _kept(event.kv_transfer) if event.HasField("kv_transfer") else None
    return Said(event.text, _REASONS.get(event.finish_reason, "stop"), getattr(event, by) if by else None, counts, kept)


def found(message: bytes) -> tuple[Sequence[Sequence[float]], int]:
    """The vectors of an answer. Raises BadAnswer."""
    try:
        reply = engine_pb2.VectorsReply.FromString(message)
    except DecodeError as error:
        raise BadAnswer(f"The replica sent vectors that are none: {error}.") from None
    return [vector.values for vector in reply.vectors], reply.usage.prompt_tokens


def _kept(there: engine_pb2.KvTransfer) -> Mapping[str, object]:
    """As the engine says it over HTTP."""
    return {
        "do_remote_decode": there.do_remote_decode,
        "do_remote_prefill": there.do_remote_prefill,
        "remote_engine_id": there.remote_engine_id,
        "remote_block_ids": list(there.remote_block_ids),
        "remote_host": there.remote_host,
        "remote_port": there.remote_port,
    }


def _sampling(body: Chat | Completion, sample: int) -> common_pb2.Sampling:
    given = {name: value for name in _AS_THEY_ARE if (value := getattr(body, name)) is not None}
    if body.top_k is not None and body.top_k > 0:
        given["top_k"] = body.top_k
    if body.seed is not None:
        given["seed"] = (body.seed + sample) % 2**64
    return common_pb2.Sampling(max_tokens=body.most_tokens, stop=body.stops, **given)
