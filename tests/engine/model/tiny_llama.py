"""A small random model, and a second, dense implementation of the same arithmetic to compare with.

The dense one has no cache, no paging and no batch: each token's logits come from the whole text before it.
"""

import math

import torch
from torch import Tensor

from engine.model import variants
from engine.model.checkpoint import Checkpoint
from engine.model.config import ModelConfig, Rope
from engine.model.decoder import Decoder
from engine.model.loader import load
from engine.model.weights import weight_shapes

Weights = dict[str, Tensor]

# Threads that wait for each other on a busy machine make small matrices take milliseconds.
torch.set_num_threads(1)


def tiny_config(
    *, tie_embeddings: bool = True, num_kv_heads: int = 2, family: str = "llama", window: int | None = None
) -> ModelConfig:
    return ModelConfig(
        variant=variants.of_huggingface(family),
        hidden_size=48,
        intermediate_size=64,
        num_layers=2,
        num_heads=4,
        num_kv_heads=num_kv_heads,
        head_dim=8,
        vocab_size=97,
        max_position=256,
        rope=Rope(1000.0),
        rms_norm_eps=1e-5,
        tie_embeddings=tie_embeddings,
        eos_token_ids=(0,),
        bos_token_id=None,
        windows=(None, window),
    )


def tiny_weights(config: ModelConfig) -> Weights:
    random = torch.Generator().manual_seed(7)
    return {
        name: 1 + 0.1 * torch.randn(shape, generator=random)
        if len(shape) == 1
        else torch.randn(shape, generator=random) * 1.5 / math.sqrt(shape[-1])
        for name, shape in weight_shapes(config).items()
    }


def tiny_llama(
    config: ModelConfig | None = None, weights: Weights | None = None, dtype: torch.dtype = torch.float32
) -> Decoder:
    config = config or tiny_config()
    return load(in_memory(config, weights or tiny_weights(config)), dtype, torch.device("cpu"))


def in_memory(config: ModelConfig, weights: Weights) -> Checkpoint:
    return Checkpoint(config, weights.__getitem__, lambda name, indices: weights[name][indices], lambda name: None)


def dense_logits(config: ModelConfig, weights: Weights, tokens: list[int]) -> Tensor:
    """[tokens, vocabulary]"""
    hidden = weights["model.embed_tokens.weight"][tokens]
    for index in range(config.num_layers):
        layer = {
            name.removeprefix(f"model.layers.{index}."): weight
            for name, weight in weights.items()
            if name.startswith(f"model.layers.{index}.")
        }
        normed = _norm(config, hidden, layer["input_layernorm.weight"])
        hidden = hidden + _attention(config, layer, normed, config.windows[index]) @ layer["self_attn.o_proj.weight"].T
        normed = _norm(config, hidden, layer["post_attention_layernorm.weight"])
        gate, up = normed @ layer["mlp.gate_proj.weight"].T, normed @ layer["mlp.up_proj.weight"].T
        hidden = hidden + (gate * torch.sigmoid(gate) * up) @ layer["mlp.down_proj.weight"].T
    head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    return _norm(config, hidden, weights["model.norm.weight"]) @ head.T


def dense_greedy(config: ModelConfig, weights: Weights, prompt: tuple[int, ...], num_tokens: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(int(dense_logits(config, weights, tokens)[-1].argmax()))
    return tokens[len(prompt) :]


def _norm(config: ModelConfig, hidden: Tensor, weight: Tensor) -> Tensor:
    return hidden / (hidden.pow(2).mean(-1, keepdim=True) + config.rms_norm_eps).sqrt() * weight


def _attention(config: ModelConfig, layer: Weights, hidden: Tensor, window: int | None) -> Tensor:
    group = config.num_heads // config.num_kv_heads
    queries, keys, values = (
        _heads(config, hidden @ layer[f"self_attn.{name}_proj.weight"].T + layer.get(f"self_attn.{name}_proj.bias", 0))
        for name in "qkv"
    )
    if config.variant.has_qk_norm:
        queries = _norm(config, queries, layer["self_attn.q_norm.weight"])
        keys = _norm(config, keys, layer["self_attn.k_norm.weight"])
    queries, keys = _turned(config, queries), _turned(config, keys)
    attended = []
    for head in range(config.num_heads):
        scores = queries[head] @ keys[head // group].T / math.sqrt(config.head_dim)
        hidden_keys = torch.ones_like(scores).triu(1).bool()
        if window is not None:
            hidden_keys |= torch.ones_like(scores).tril(-window).bool()
        attended.append(scores.masked_fill(hidden_keys, float("-inf")).softmax(-1) @ values[head // group])
    return torch.cat(attended, dim=-1)


def _heads(config: ModelConfig, projected: Tensor) -> Tensor:
    """[tokens, heads * head_dim] -> [heads, tokens, head_dim]"""
    return projected.reshape(len(projected), -1, config.head_dim).transpose(0, 1)


def _turned(config: ModelConfig, heads: Tensor) -> Tensor:
    """Each pair (i, i + half) as a complex number, turned by position * theta ** (-2i / head_dim)."""
    half = config.head_dim // 2
    speeds = config.rope.theta ** (-2 * torch.arange(half) / config.head_dim)
    angles = torch.arange(heads.shape[1])[:, None] * speeds
    turned = torch.complex(heads[..., :half], heads[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], dim=-1)
