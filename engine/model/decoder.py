"""The decoder of the Llama and Qwen families: the order of the arithmetic.

Knows layers as they were loaded. Must not know files, names in them, batching policy or sampling.

What runs from layer to layer is float32 whatever the matrices are: only they gain from a shorter type.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from engine.model.attention import Paging
from engine.model.config import ModelConfig
from engine.model.embedding import Embedding
from engine.model.layers import RmsNorm, Rotation, swiglu
from engine.model.linear import Linear

Deltas = Callable[[Tensor, Tensor, int, str], None]
"""(outputs, inputs, layer, projection): adds in place to `outputs` [tokens, out], which may be a slice of columns, what
each token's adapter makes of `inputs` [tokens, in]. The projection is one of PROJECTIONS. None where no token of the
batch has an adapter: it then costs nothing."""

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class Layer:
    """`qkv` gives queries, keys and values side by side, `gate_up` the two halves of the feed-forward. The norms of
    single heads are None where the family has none."""

    attention_norm: RmsNorm
    qkv: Linear
    query_norm: RmsNorm | None
    key_norm: RmsNorm | None
    output: Linear
    feed_forward_norm: RmsNorm
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class Decoder:
    """`frequencies` are those of the rotary positions; `dtype` is what the matrices compute in, `least_rows` the number
    of rows below which they gain nothing by having fewer."""

    config: ModelConfig
    dtype: torch.dtype
    embedding: Embedding
    layers: tuple[Layer, ...]
    norm: RmsNorm
    head: Linear
    frequencies: Tensor
    least_rows: int = 1

    @property
    def device(self) -> torch.device:
        return self.frequencies.device

    def hidden(
        self,
        tokens: Tensor,
        positions: Tensor,
        paging: Paging,
        deltas: Deltas | None = None,
        wanted: Tensor | None = None,
    ) -> Tensor:
        """[tokens] ids at [tokens] positions -> final states, float32, of all, [tokens, hidden], or of those at the
        indices `wanted`, [wanted, hidden]; the KV of all is in the cache then."""
        rotation = Rotation.of(positions, self.frequencies)
        num_tokens = len(tokens)
        # Rows that stand for no token, so that the matrices need not add them each for itself.
        hidden = pad(self.embedding(tokens), (0, 0, 0, max(0, self.least_rows - num_tokens)))
        real = hidden[:num_tokens]
        for index, layer in enumerate(self.layers):
            normed = layer.attention_norm(hidden).to(self.dtype)
            attended = self._attended(index, layer, normed, rotation, paging, deltas)
            if index == len(self.layers) - 1 and wanted is not None and deltas is None:
                # The others have given their KV. An adapter's rows are counted among all: then all go on.
                real = hidden = hidden[wanted]
                attended, num_tokens, wanted = attended[wanted], len(real), None
                if num_tokens == 0:
                    break
            real += self._output(index, layer, attended, deltas)
            normed = layer.feed_forward_norm(hidden).to(self.dtype)
            hidden += self._feed_forward(index, layer, normed, num_tokens, deltas)
        return self.norm(real if wanted is None else real[wanted])

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] -> [rows, vocabulary], float32."""
        return self.head(hidden).float()

    def _attended(
        self, index: int, layer: Layer, normed: Tensor, rotation: Rotation, paging: Paging, deltas: Deltas | None
    ) -> Tensor:
        """[rows, hidden] -> [tokens, heads * head_dim], what the queries found."""
        config = self.config
        num_tokens = len(rotation.cos)
        projected = layer.qkv(normed)[:num_tokens]
        num_queries, num_keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        if deltas is not None:
            parts = torch.split(projected, [num_queries, num_keys, num_keys], dim=-1)
            for part, name in zip(parts, PROJECTIONS[:3], strict=True):
                deltas(part, normed[:num_tokens], index, name)
        heads = projected.float().view(num_tokens, -1, config.head_dim)
        self._norm_heads(layer, heads)
        rotation.turn_(heads[:, : config.num_heads + config.num_kv_heads])
        dtype = paging.cache.blocks.dtype
        fresh = heads[:, config.num_heads :].to(dtype)
        return paging.attend(index, heads[:, : config.num_heads].to(dtype), fresh).flatten(1).to(self.dtype)

    def _output(self, index: int, layer: Layer, attended: Tensor, deltas: Deltas | None) -> Tensor:
        """[tokens, heads * head_dim] -> [tokens, hidden]"""
        output = layer.output(attended)
        if deltas is not None:
            deltas(output, attended, index, "o_proj")
        return output

    def _norm_heads(self, layer: Layer, heads: Tensor) -> None:
        if layer.query_norm is None or layer.key_norm is None:
            return
        queries = heads[:, : self.config.num_heads]
        keys = heads[:, self.config.num_heads : self.config.num_heads + self.config.num_kv_heads]
        queries.copy_(layer.query_norm(queries))
        keys.copy_(layer.key_norm(keys))

    def _feed_forward(self, index: int, layer: Layer, normed: Tensor, num_tokens: int, deltas: Deltas | None) -> Tensor:
        """[rows, hidden] -> the same"""
        both = layer.gate_up(normed)
        if deltas is not None:
            gate, up = both.chunk(2, dim=-1)
            deltas(gate[:num_tokens], normed[:num_tokens], index, "gate_proj")
            deltas(up[:num_tokens], normed[:num_tokens], index, "up_proj")
        inner = swiglu(both)
        output = layer.down(inner)
        if deltas is not None:
            deltas(output[:num_tokens], inner[:num_tokens], index, "down_proj")
        return output
