"""vLLM's VllmEngine: what a body becomes there, and what its tokens say. Knows its messages; knows no calls.

It speaks in tokens alone: text, and what a stop text cuts off, are made here.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from google.protobuf.message import DecodeError

from pointsman.v1 import vllm_engine_pb2 as vllm
from router.errors import BadAnswer
from router.ports import Decoder
from router.upstream.grpc.answering import Call
from router.upstream.grpc.answers import Counts, Said
from router.upstream.grpc.asks import Chat, Completion, unsupported
from router.upstream.grpc.stops import Stops

_SERVICE = f"/{vllm.DESCRIPTOR.services_by_name['VllmEngine'].full_name}"
GENERATE, EMBED = f"{_SERVICE}/Generate", f"{_SERVICE}/Embed"
_AS_THEY_ARE = (
    *("min_tokens", "temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty"),
    *("stop_token_ids", "ignore_eos", "logit_bias"),
)
# The contract has no field for these: such requests go over HTTP.
_MISSING = ("cache_salt", "priority", "kv_transfer_params")


def generating(
    body: Chat | Completion, prompts: "Sequence[str | array[int]]", request_id: str, adapter: str | None
) -> Iterator[Call]:
    """A call for each choice. Raises UpstreamStatus that names what the contract does not have."""
    for name in _MISSING:
        if getattr(body, name) is not None:
            raise unsupported(name)
    if adapter is not None:
        raise unsupported("model", "the contract of this replica has no adapters")
    for prompt_number, prompt in enumerate(prompts):
        for sample in range(body.n or 1):
            asked = vllm.GenerateRequest(
                request_id=f"{request_id}-{prompt_number}-{sample}",
                sampling_params=_sampling(body, sample),
                stream=bool(body.stream),
            )
            if isinstance(prompt, str):
                asked.text = prompt
            else:
                asked.tokenized.input_ids.extend(prompt)
            yield Call(GENERATE, asked.SerializeToString())


def embedding(texts: "Sequence[str | array[int]]", request_id: str) -> Iterator[Call]:
    """A call for each text, which must be in tokens."""
    for number, ids in enumerate(texts):
        if isinstance(ids, str):
            raise unsupported("input", "the router has no tokenizer for this model, and the replica takes tokens alone")
        asked = vllm.EmbedRequest(request_id=f"{request_id}-{number}", tokenized={"input_ids": ids})
        yield Call(EMBED, asked.SerializeToString())


@dataclass(eq=False, slots=True)
class Choice:
    """One choice of an answer, as far as it came."""

    decoder: Decoder
    stops: Stops
    num_output_tokens: int = 0

    def chunk(self, chunk: vllm.GenerateStreamChunk) -> Said:
        self.num_output_tokens += len(chunk.token_ids)
        text = self.stops.push(self.decoder.push(chunk.token_ids))
        return Said(text, counts=Counts(chunk.prompt_tokens, chunk.cached_tokens, self.num_output_tokens))

    def complete(self, last: vllm.GenerateComplete) -> Said:
        """In a stream it only repeats the tokens of the chunk before."""
        text = ""
        if not self.num_output_tokens:
            text, self.num_output_tokens = self.decoder.push(last.output_ids), len(last.output_ids)
        by = last.WhichOneof("matched_stop")
        stopped_by = getattr(last, by) if by else None
        text = self.stops.end(text + self.decoder.flush(), stopped_by if isinstance(stopped_by, str) else None)
        counts = Counts(last.prompt_tokens, last.cached_tokens, self.num_output_tokens)
        return Said(text, last.finish_reason or "stop", stopped_by, counts)


@dataclass(frozen=True, slots=True)
class Reading:
    """Of all choices of one attempt, whose calls are in their order."""

    choices: Sequence[Choice]

    @classmethod
    def of(cls, body: Chat | Completion, decoders: Sequence[Decoder]) -> "Reading":
        return cls([Choice(decoder, Stops(body.stops)) for decoder in decoders])

    def said(self, index: int, message: bytes) -> Said:
        """What a message says. Raises BadAnswer."""
        try:
            response = vllm.GenerateResponse.FromString(message)
        except DecodeError as error:
            raise BadAnswer(f"The replica sent a message that is none: {error}.") from None
        choice = self.choices[index]
        match response.WhichOneof("response"):
            case "chunk":
                return choice.chunk(response.chunk)
            case "complete" if response.complete.finish_reason != "error":
                return choice.complete(response.complete)
        raise BadAnswer("The replica says that it failed, and not why.")


def found(message: bytes) -> tuple[Sequence[Sequence[float]], int]:
    """The vector of an answer. Raises BadAnswer."""
    try:
        reply = vllm.EmbedResponse.FromString(message)
    except DecodeError as error:
        raise BadAnswer(f"The replica sent a vector that is none: {error}.") from None
    return [reply.embedding], reply.prompt_tokens


def _sampling(body: Chat | Completion, sample: int) -> vllm.SamplingParams:
    given: dict[str, Any] = {name: value for name in _AS_THEY_ARE if (value := getattr(body, name)) is not None}
    if body.top_k is not None and body.top_k > 0:
        given["top_k"] = body.top_k
    if body.seed is not None:
        given["seed"] = (body.seed + sample) % 2**31
    return vllm.SamplingParams(
        max_tokens=body.most_tokens, stop=body.stops, skip_special_tokens=True, **given, **_constraint(body)
    )


def _constraint(body: Chat | Completion) -> dict[str, Any]:
    """What the output is to keep to. Raises UpstreamStatus."""
    wanted, named = body.response_format, body.structured_outputs
    if wanted is not None:
        if wanted.type == "json_object":
            return {"json_object": True}
        schema = (wanted.json_schema or {}).get("schema", {})
        return {"json_schema": msgspec.json.encode(schema).decode()}
    if named is None:
        return {}
    if named.json is not None:
        return {"json_schema": named.json if isinstance(named.json, str) else msgspec.json.encode(named.json).decode()}
    if named.choice is not None:
        return {"choice": {"choices": named.choice}}
    return {name: value for name in ("regex", "grammar", "json_object") if (value := getattr(named, name))}
