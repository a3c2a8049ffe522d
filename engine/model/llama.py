"""The Llama family: Llama 2 and 3, SmolLM2, Mistral without a sliding window.

Knows the weights by their Hugging Face names and the order of the layers. Must not know files, batching policy or
sampling.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from engine.model.attention import KVCache, Paging, attend, write
from engine.model.config import ModelConfig
from engine.model.layers import gated_feed_forward, rms_norm, rotary_table, rotate


@dataclass(frozen=True, slots=True)
class LlamaLayer:
    """One layer's weights, [out, in] each."""

    attention_norm: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    feed_forward_norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class Llama:
    config: ModelConfig
    layers: tuple[LlamaLayer, ...]
    embeddings: Tensor
    norm: Tensor
    head: Tensor
    rotary: Tensor

    @classmethod
    def of(cls, config: ModelConfig, weights: Mapping[str, Tensor], num_positions: int) -> Self:
        """Serves positions below `num_positions`."""
        embeddings = weights["model.embed_tokens.weight"]
        return cls(
            config=config,
            layers=tuple(_layer(weights, f"model.layers.{index}") for index in range(config.num_layers)),
            embeddings=embeddings,
            norm=weights["model.norm.weight"],
            head=embeddings if config.tie_embeddings else weights["lm_head.weight"],
            rotary=rotary_table(config.head_dim, num_positions, config.rope_theta, embeddings.device),
        )

    @property
    def dtype(self) -> torch.dtype:
        return self.embeddings.dtype

    @property
    def device(self) -> torch.device:
        return self.embeddings.device

    def hidden(self, tokens: Tensor, positions: Tensor, cache: KVCache, paging: Paging) -> Tensor:
        """[tokens] ids at [tokens] positions -> [tokens, hidden] final states; their KV is in the cache then."""
        cos, sin = self.rotary[:, positions].to(self.dtype)[:, :, None]
        hidden = embedding(tokens, self.embeddings)
        for index, layer in enumerate(self.layers):
            normed = rms_norm(hidden, layer.attention_norm, self.config.rms_norm_eps)
            hidden = hidden + self._attention(index, layer, normed, cos, sin, cache, paging)
            normed = rms_norm(hidden, layer.feed_forward_norm, self.config.rms_norm_eps)
            hidden = hidden + gated_feed_forward(normed, layer.gate, layer.up, layer.down)
        return rms_norm(hidden, self.norm, self.config.rms_norm_eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] -> [rows, vocabulary], float32."""
        return linear(hidden, self.head).float()

    def _attention(
        self,
        index: int,
        layer: LlamaLayer,
        hidden: Tensor,
        cos: Tensor,
        sin: Tensor,
        cache: KVCache,
        paging: Paging,
    ) -> Tensor:
        queries, keys, values = (
            linear(hidden, weight).view(len(hidden), -1, self.config.head_dim)
            for weight in (layer.query, layer.key, layer.value)
        )
        write(cache, index, rotate(keys, cos, sin), values, paging)
        attended = attend(cache, index, rotate(queries, cos, sin), paging)
        return linear(attended.flatten(-2), layer.output)


def _layer(weights: Mapping[str, Tensor], prefix: str) -> LlamaLayer:
    return LlamaLayer(
        attention_norm=weights[f"{prefix}.input_layernorm.weight"],
        query=weights[f"{prefix}.self_attn.q_proj.weight"],
        key=weights[f"{prefix}.self_attn.k_proj.weight"],
        value=weights[f"{prefix}.self_attn.v_proj.weight"],
        output=weights[f"{prefix}.self_attn.o_proj.weight"],
        feed_forward_norm=weights[f"{prefix}.post_attention_layernorm.weight"],
        gate=weights[f"{prefix}.mlp.gate_proj.weight"],
        up=weights[f"{prefix}.mlp.up_proj.weight"],
        down=weights[f"{prefix}.mlp.down_proj.weight"],
    )
