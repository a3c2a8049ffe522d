"""Reads LoRA adapters as PEFT saves them: a folder with adapter_config.json and adapter_model.safetensors.

Knows PEFT's names and options, and which of them the engine honours. Must not know batches, slots or requests. Sizes
are checked before weights are read, and nothing is unpickled.
"""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor
from xxhash import xxh3_64

from engine.adapters import AdapterError, ReadAdapter
from engine.model.low_rank import Layers, LowRank

# Projection -> the part of the layer that it is in.
PROJECTIONS: Mapping[str, str] = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), "self_attn"),
    **dict.fromkeys(("gate_proj", "up_proj", "down_proj"), "mlp"),
}
_WEIGHT = re.compile(
    r"base_model\.model\.(?:model\.)?layers\.(?P<layer>\d+)\."
    r"(?P<part>\w+)\.(?P<projection>\w+)\.lora_(?P<side>[AB])\.weight"
)
# PEFT's options that change what an adapter computes, with the values that ask for nothing.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "fan_in_fan_out": (False,),
    "use_dora": (False,),
    "lora_bias": (False,),
    "use_qalora": (False,),
    "modules_to_save": ([],),
    "trainable_token_indices": ([],),
    "alora_invocation_tokens": ([],),
    "layer_replication": ([],),
    "target_parameters": ([],),
}
_MOST_CONFIG_BYTES = 1 << 20


def read_lora(folder: Path, shapes: Mapping[str, tuple[int, ...]], max_rank: int) -> ReadAdapter[Layers]:
    """`shapes`: those of the model's weights, by Hugging Face name.

    Raises AdapterError naming the file, and the option or tensor at fault.
    """
    config = _read_config(folder / "adapter_config.json")
    file = folder / "adapter_model.safetensors"
    parts: dict[tuple[int, str], dict[str, Tensor]] = {}
    try:
        with safe_open(file, framework="pt", device="cpu") as opened:
            for name in opened.keys():  # noqa: SIM118 - it is no mapping
                layer, projection, side = _place(file, name, shapes)
                _check_shape(file, name, opened.get_slice(name), shapes[_weight(layer, projection)], side, max_rank)
                parts.setdefault((layer, projection), {})[side] = opened.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise AdapterError(f"{file}: not a sound safetensors file: {error}") from None
    if not parts:
        raise AdapterError(f"{file}: there are no LoRA weights in it")
    low_ranks = {place: _low_rank(file, config, place, sides) for place, sides in parts.items()}
    num_layers = 1 + max(int(name.split(".")[2]) for name in shapes if name.startswith("model.layers."))
    layers = tuple(
        {projection: part for (layer, projection), part in low_ranks.items() if layer == index}
        for index in range(num_layers)
    )
    rank = max(len(part.inner) for part in low_ranks.values())
    return ReadAdapter(rank, _digest(config, parts), layers)


def _read_config(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > _MOST_CONFIG_BYTES:
            raise AdapterError(f"{file}: more than {_MOST_CONFIG_BYTES} bytes")
        config = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, AdapterError):
            raise
        raise AdapterError(f"{file}: cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise AdapterError(f"{file}: not a JSON object")
    for option, neutral in _NEUTRAL.items():
        value = config.get(option)
        if value is not None and value not in neutral:
            raise AdapterError(f"{file}: {option} {value!r} is not supported")
    for option in ("r", "lora_alpha"):
        if not _is_positive(config.get(option)):
            raise AdapterError(f"{file}: {option} must be a number above 0, not {config.get(option)!r}")
    return config


def _place(file: Path, name: str, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, str, str]:
    """Layer, projection and side that a tensor belongs to."""
    found = _WEIGHT.fullmatch(name)
    if found is None or PROJECTIONS.get(found["projection"]) != found["part"]:
        raise AdapterError(f"{file}: tensor {name} is not supported; LoRA on {', '.join(PROJECTIONS)} is")
    layer, projection = int(found["layer"]), found["projection"]
    if _weight(layer, projection) not in shapes:
        raise AdapterError(f"{file}: tensor {name} is for a layer that the model does not have")
    return layer, projection, found["side"]


def _weight(layer: int, projection: str) -> str:
    return f"model.layers.{layer}.{PROJECTIONS[projection]}.{projection}.weight"


def _check_shape(file: Path, name: str, stored: Any, shape: tuple[int, ...], side: str, max_rank: int) -> None:
    found = tuple(stored.get_shape())
    axis, size = (1, shape[1]) if side == "A" else (0, shape[0])
    if len(found) != 2 or found[axis] != size:
        wanted = f"(rank, {size})" if side == "A" else f"({size}, rank)"
        raise AdapterError(f"{file}: tensor {name} has shape {found}, the model asks for {wanted}")
    if not 1 <= found[1 - axis] <= max_rank:
        raise AdapterError(
            f"{file}: tensor {name} has rank {found[1 - axis]}, this engine takes 1 to {max_rank} (--max-lora-rank)"
        )
    if stored.get_dtype() not in ("F32", "F16", "BF16"):
        raise AdapterError(f"{file}: tensor {name} has type {stored.get_dtype()}, not F32, F16 or BF16")


def _low_rank(file: Path, config: dict[str, Any], place: tuple[int, str], sides: dict[str, Tensor]) -> LowRank:
    name = _weight(*place).removesuffix(".weight")
    if len(sides) != 2:
        raise AdapterError(f"{file}: {name} has lora_{next(iter(sides))} only, not both A and B")
    inner, outer = sides["A"].float(), sides["B"].float()
    if len(inner) != outer.shape[1]:
        raise AdapterError(f"{file}: {name} has rank {len(inner)} in lora_A and {outer.shape[1]} in lora_B")
    rank = _by_pattern(config, "rank_pattern", name, config["r"])
    if rank != len(inner):
        raise AdapterError(f"{file}: {name} has rank {len(inner)}, adapter_config.json says {rank}")
    alpha = _by_pattern(config, "alpha_pattern", name, config["lora_alpha"])
    scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
    return LowRank(inner, outer * scale)


def _digest(config: dict[str, Any], parts: Mapping[tuple[int, str], Mapping[str, Tensor]]) -> int:
    digest = xxh3_64(json.dumps(config, sort_keys=True).encode())
    for place in sorted(parts):
        for side in "AB":
            digest.update(parts[place][side].float().contiguous().numpy().data)
    return digest.intdigest()


def _by_pattern(config: dict[str, Any], option: str, name: str, default: float) -> float:
    """PEFT lets single modules differ: the option maps ends of their names, as regular expressions, to values."""
    patterns = config.get(option) or {}
    if not isinstance(patterns, dict):
        raise AdapterError(f"adapter_config.json: {option} must be an object")
    for pattern, value in patterns.items():
        try:
            is_match = re.match(rf"(.*\.)?({pattern})$", name) is not None
        except re.error as error:
            raise AdapterError(f"adapter_config.json: {option}: {pattern!r}: {error}") from None
        if is_match:
            if not _is_positive(value):
                raise AdapterError(f"adapter_config.json: {option}: {pattern!r} must be above 0, not {value!r}")
            return float(value)
    return default


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
