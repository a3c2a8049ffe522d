"""LoRA adapters as PEFT writes them to disk, for models of any shape, and what they add to each weight."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def write_lora(
    folder: Path,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    rank: int = 4,
    alpha: float = 8,
    seed: int = 0,
    projections: Sequence[str] = ALL,
    size: float = 0.5,
    tensors: Mapping[str, Tensor] | None = None,
    **config: Any,
) -> dict[str, Tensor]:
    """Weight name -> what the adapter adds to it. `tensors` and `config` replace what would be written."""
    random = torch.Generator().manual_seed(seed)
    written: dict[str, Tensor] = {}
    added: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        if name.split(".")[-2] not in projections:
            continue
        inner = torch.randn(rank, shape[1], generator=random) / shape[1] ** 0.5
        outer = torch.randn(shape[0], rank, generator=random) * size
        path = f"base_model.model.{name.removesuffix('.weight')}"
        written |= {f"{path}.lora_A.weight": inner, f"{path}.lora_B.weight": outer}
        added[name] = outer @ inner * (alpha / rank)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(dict(written | dict(tensors or {})), folder / "adapter_model.safetensors")
    facts = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": list(projections), "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(facts | config))
    return added
