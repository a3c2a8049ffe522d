"""Loads a checkpoint into tensors with Hugging Face's names, from GGUF or safetensors.

Knows file layouts and tensor names. Must not know how the layers compute. Nothing is unpickled; each tensor is
checked against the config by name and shape before its weights are read.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from engine.model.config import ModelConfig, read_json_object
from engine.model.gguf import Floats, GgufFile, WeightFileError, find_gguf

Shape = tuple[int, ...]

# Our (Hugging Face's) suffix inside layer N -> GGUF's suffix inside blk.N.
_LAYER_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
_OUTER_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
# Old checkpoints carry the rope's frequencies, which follow from rope_theta.
_RECOMPUTED = "rotary_emb.inv_freq"
_STORED_AS_FLOAT = ("F64", "F32", "F16", "BF16")


def load(path: Path, dtype: torch.dtype, device: torch.device) -> tuple[ModelConfig, dict[str, torch.Tensor]]:
    """The config and every weight, as `dtype` on `device`.

    `path` is a .gguf file, a folder with config.json and safetensors, or a folder with exactly one .gguf.
    `lm_head.weight` is absent when the embeddings are tied. Raises ModelError naming file and tensor.
    """
    gguf = find_gguf(path)
    if gguf is not None:
        return _load_gguf(gguf, dtype, device)
    return _load_safetensors(path, dtype, device)


def weight_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Every weight that a model of this config has, by Hugging Face name."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    layer = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    shapes: dict[str, Shape] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for index in range(config.num_layers):
        shapes |= {f"model.layers.{index}.{suffix}": shape for suffix, shape in layer.items()}
    shapes["model.norm.weight"] = (hidden,)
    if not config.tie_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


def _load_gguf(path: Path, dtype: torch.dtype, device: torch.device) -> tuple[ModelConfig, dict[str, torch.Tensor]]:
    file = GgufFile.open(path)
    config = ModelConfig.from_gguf(
        file.metadata,
        has_output_weight="output.weight" in file.tensors,
        has_rope_factors="rope_freqs.weight" in file.tensors,
    )
    shapes = weight_shapes(config)
    stored_names = {name: _gguf_name(name) for name in shapes}
    _check_names(path, stored_names.values(), file.tensors)
    for name, shape in shapes.items():
        _check_shape(path, stored_names[name], file.tensors[stored_names[name]].shape, shape)
    weights = {}
    for name, stored_name in stored_names.items():
        values = _unpermute(name, file.read(stored_name), config)
        weights[name] = torch.from_numpy(values).to(device=device, dtype=dtype)
    return config, weights


def _gguf_name(name: str) -> str:
    if name in _OUTER_NAMES:
        return _OUTER_NAMES[name]
    index, suffix = name.removeprefix("model.layers.").split(".", 1)
    return f"blk.{index}.{_LAYER_NAMES[suffix]}"


def _unpermute(name: str, values: Floats, config: ModelConfig) -> Floats:
    """Llama's GGUFs interleave the two rotary halves of each query and key head; ours are side by side."""
    if name.endswith("q_proj.weight"):
        num_heads = config.num_heads
    elif name.endswith("k_proj.weight"):
        num_heads = config.num_kv_heads
    else:
        return values
    interleaved = values.reshape(num_heads, config.head_dim // 2, 2, -1)
    return interleaved.swapaxes(1, 2).reshape(values.shape)


def _load_safetensors(
    folder: Path, dtype: torch.dtype, device: torch.device
) -> tuple[ModelConfig, dict[str, torch.Tensor]]:
    generation = folder / "generation_config.json"
    config = ModelConfig.from_huggingface(
        read_json_object(folder / "config.json"),
        read_json_object(generation) if generation.exists() else None,
    )
    shapes = weight_shapes(config)
    homes = _homes(folder)
    ignored = {name for name in homes if name.endswith(_RECOMPUTED)}
    if config.tie_embeddings:
        ignored.add("lm_head.weight")
    _check_names(folder, shapes, homes.keys() - ignored)
    weights = {}
    for file in sorted(set(homes.values())):
        wanted = {name: shape for name, shape in shapes.items() if homes[name] == file}
        for name, tensor in _read_safetensors(file, wanted):
            weights[name] = tensor.to(device=device, dtype=dtype)
    return config, weights


def _homes(folder: Path) -> dict[str, Path]:
    """Tensor name -> the safetensors file that holds it."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        return _homes_by_index(folder, index)
    file = folder / "model.safetensors"
    if not file.exists():
        raise WeightFileError(f"{folder}: neither model.safetensors nor {index.name} is there")
    with _open_safetensors(file) as opened:
        return dict.fromkeys(opened.keys(), file)


def _homes_by_index(folder: Path, index: Path) -> dict[str, Path]:
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise WeightFileError(f"{index}: weight_map is not an object")
    homes: dict[str, Path] = {}
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or shard != Path(shard).name or not (folder / shard).is_file():
            raise WeightFileError(f"{index}: the file {shard!r} of tensor {name} is not in this folder")
        homes[name] = folder / shard
    return homes


def _read_safetensors(file: Path, wanted: Mapping[str, Shape]) -> Iterator[tuple[str, torch.Tensor]]:
    with _open_safetensors(file) as opened:
        _check_present(file, wanted, opened.keys())
        for name, shape in wanted.items():
            stored = opened.get_slice(name)
            _check_shape(file, name, tuple(stored.get_shape()), shape)
            if stored.get_dtype() not in _STORED_AS_FLOAT:
                raise WeightFileError(f"{file}: tensor {name} has type {stored.get_dtype()}, not a float type")
            yield name, opened.get_tensor(name)


def _open_safetensors(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise WeightFileError(f"{file}: not a sound safetensors file: {error}") from None


def _check_names(where: Path, wanted: Iterable[str], stored: Iterable[str]) -> None:
    wanted, stored = set(wanted), set(stored)
    _check_present(where, wanted, stored)
    if unexpected := stored - wanted:
        raise WeightFileError(f"{where}: unexpected tensors {_some(unexpected)}")


def _check_present(where: Path, wanted: Iterable[str], stored: Iterable[str]) -> None:
    if missing := set(wanted) - set(stored):
        raise WeightFileError(f"{where}: missing tensors {_some(missing)}")


def _some(names: set[str], limit: int = 5) -> str:
    shown = ", ".join(sorted(names)[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def _check_shape(where: Path, name: str, stored: Shape, wanted: Shape) -> None:
    if stored != wanted:
        raise WeightFileError(f"{where}: tensor {name} has shape {stored}, the config asks for {wanted}")
