"""Which weights a model has: their names, in both formats, and shapes.

Knows Hugging Face's names, which are ours, and GGUF's. Must not know files, tensors or torch.
"""

from collections.abc import Iterable
from pathlib import Path

from engine.model.config import ModelConfig
from engine.model.fields import ModelError

Shape = tuple[int, ...]

EMBEDDINGS, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
ROPE_FACTORS = "model.rope_factors"
"""What the rotary frequencies are divided by. Only GGUF has it."""

_OUTER_GGUF_NAMES = {
    EMBEDDINGS: "token_embd.weight",
    NORM: "output_norm.weight",
    HEAD: "output.weight",
    ROPE_FACTORS: "rope_freqs.weight",
}
# Our suffix inside layer N -> GGUF's inside blk.N, each before ".weight" or ".bias".
_LAYER_GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


class WeightFileError(ModelError):
    """A weight file is damaged, hostile or of a kind that is not supported."""


def layer_prefix(index: int) -> str:
    return f"model.layers.{index}."


def gguf_name(name: str) -> str:
    if name in _OUTER_GGUF_NAMES:
        return _OUTER_GGUF_NAMES[name]
    index, suffix = name.removeprefix("model.layers.").split(".", 1)
    stem, _, kind = suffix.rpartition(".")
    return f"blk.{index}.{_LAYER_GGUF_NAMES[stem]}.{kind}"


def weight_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Every weight that a model of this config has."""
    shapes: dict[str, Shape] = {EMBEDDINGS: (config.vocab_size, config.hidden_size)}
    layer = _layer_shapes(config)
    for index in range(config.num_layers):
        shapes |= {layer_prefix(index) + suffix: shape for suffix, shape in layer.items()}
    shapes[NORM] = (config.hidden_size,)
    if not config.tie_embeddings:
        shapes[HEAD] = shapes[EMBEDDINGS]
    if config.rope.has_factors:
        shapes[ROPE_FACTORS] = (config.head_dim // 2,)
    return shapes


def _layer_shapes(config: ModelConfig) -> dict[str, Shape]:
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    outs = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
    shapes: dict[str, Shape] = {f"self_attn.{name}.weight": (out, hidden) for name, out in outs.items()}
    shapes |= {
        "self_attn.o_proj.weight": (hidden, queries),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    if config.variant.has_qkv_bias:
        shapes |= {f"self_attn.{name}.bias": (out,) for name, out in outs.items()}
    if config.variant.has_qk_norm:
        shapes |= {f"self_attn.{name}.weight": (config.head_dim,) for name in ("q_norm", "k_norm")}
    return shapes


def check_names(where: Path, wanted: Iterable[str], stored: Iterable[str]) -> None:
    """Raises WeightFileError unless they are the same."""
    wanted, stored = set(wanted), set(stored)
    check_present(where, wanted, stored)
    if unexpected := stored - wanted:
        raise WeightFileError(f"{where}: unexpected tensors {_some(unexpected)}")


def check_present(where: Path, wanted: Iterable[str], stored: Iterable[str]) -> None:
    """Raises WeightFileError if one is missing."""
    if missing := set(wanted) - set(stored):
        raise WeightFileError(f"{where}: missing tensors {_some(missing)}")


def check_shape(where: Path, name: str, stored: Shape, wanted: Shape) -> None:
    """Raises WeightFileError unless they are the same."""
    if stored != wanted:
        raise WeightFileError(f"{where}: tensor {name} has shape {stored}, the config asks for {wanted}")


def _some(names: set[str], limit: int = 5) -> str:
    shown = ", ".join(sorted(names)[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
