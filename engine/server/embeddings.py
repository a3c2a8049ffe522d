"""Texts to vectors: `/v1/embeddings`.

Knows the shapes of request and answer, and how inputs become pooled requests. Must not know routes or the model.
A vector is what pooling makes of the final hidden states, of length 1.
"""

import base64
import secrets
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.loop import EngineError, EngineLoop
from engine.sampling import Pooling, Sampling
from engine.sequence import Request
from engine.server.chats import Arrival
from engine.server.errors import bad_request
from engine.server.generation import translate
from engine.server.openai import EmbeddingRequest, prompts_of
from engine.server.prompts import Prompts
from engine.server.side_by_side import side_by_side

_Vector: TypeAlias = NDArray[np.float32]
_LITTLE_ENDIAN = np.dtype("<f4")


@dataclass(frozen=True, slots=True)
class Embedder:
    """`max_model_len` is in tokens, `size` the number of a vector's dimensions, where known."""

    engine: EngineLoop
    prompts: Prompts
    pooling: Pooling
    max_model_len: int
    size: int | None

    async def answer(self, asked: EmbeddingRequest, arrival: Arrival) -> bytes:
        """The body of the answer. Raises ApiError."""
        requests, vectors = await self.vectors(asked, arrival)
        return _body(asked, requests, vectors)

    async def vectors(self, asked: EmbeddingRequest, arrival: Arrival) -> tuple[list[Request], list[_Vector]]:
        """What was computed, and a vector for each. All inputs are computed side by side; leaving early aborts them.
        Raises ApiError."""
        if asked.dimensions not in (None, self.size):
            raise bad_request(f"dimensions: this model's vectors have {self.size}, and no other number", "dimensions")
        prompts = prompts_of(asked.input, "input")
        encoded = await self.prompts.of_texts(prompts, "input")
        requests = [self._request(asked, arrival, tokens) for tokens in encoded]
        try:
            return requests, await side_by_side([self._vector(request) for request in requests])
        except EngineError as error:
            raise translate(error) from None

    def _request(self, asked: EmbeddingRequest, arrival: Arrival, tokens: list[int]) -> Request:
        if len(tokens) > self.max_model_len:
            about = f"the context is {self.max_model_len} tokens, too few for {len(tokens)} of input"
            raise bad_request(about, "input", "context_length_exceeded")
        return Request(
            id=f"embd-{secrets.token_hex(12)}",
            prompt=tuple(tokens),
            sampling=Sampling(max_tokens=0),
            arrived_s=arrival.at_s,
            priority=asked.priority or 0,
            salt=asked.cache_salt,
            adapter=arrival.adapter,
            pooling=self.pooling,
        )

    async def _vector(self, request: Request) -> _Vector:
        try:
            outputs = self.engine.submit(request)
        except ValueError as error:
            raise bad_request(str(error), "input") from None
        with outputs:
            async for output in outputs:
                vector: _Vector = output.vector
        norm = float(np.linalg.norm(vector))
        return vector / norm if norm > 0 else vector


def _body(asked: EmbeddingRequest, requests: list[Request], vectors: list[_Vector]) -> bytes:
    spell = _as_base64 if asked.encoding_format == "base64" else _as_floats
    rows = [{"object": "embedding", "index": index, "embedding": spell(vector)} for index, vector in enumerate(vectors)]
    num_tokens = sum(len(request.prompt) for request in requests)
    used = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    return msgspec.json.encode({"object": "list", "data": rows, "model": asked.model, "usage": used})


def _as_floats(vector: _Vector) -> Any:
    return vector.tolist()


def _as_base64(vector: _Vector) -> Any:
    """As OpenAI's clients read it: little-endian float32."""
    return base64.b64encode(vector.astype(_LITTLE_ENDIAN).tobytes()).decode()
