"""A model's files, opened and checked: the config and each weight by our name, read when it is asked for.

Knows the layouts of both formats: a folder with safetensors, a GGUF. Must not know how the layers compute. Nothing is
unpickled, and the files stay mapped: a weight costs memory only when it is copied. Each name, type and shape is checked
against the config before the first weight is read.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.model.coded import Codes
from engine.model.config import ModelConfig
from engine.model.fields import read_json_object
from engine.model.gguf import GgufFile, find_gguf
from engine.model.weights import (
    HEAD,
    Shape,
    WeightFileError,
    check_names,
    check_present,
    check_shape,
    gguf_name,
    weight_shapes,
)

# Old checkpoints carry the rope's frequencies, which follow from rope_theta.
_RECOMPUTED = "rotary_emb.inv_freq"
_STORED_AS_FLOAT = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`read(name)` is a weight on the CPU, of any float type, maybe a view of a file. `rows(name, indices)` copies some
    rows of a matrix. `codes(name)` is a matrix as it is stored, None if that is not in 4 or 8 bits."""

    config: ModelConfig
    read: Callable[[str], Tensor]
    rows: Callable[[str, Tensor], Tensor]
    codes: Callable[[str], Codes | None]


def open_checkpoint(path: Path) -> Checkpoint:
    """`path` is a .gguf file, a folder with config.json and safetensors, or a folder with exactly one .gguf.

    Raises ModelError naming file and tensor.
    """
    gguf = find_gguf(path)
    opened = _Safetensors.open(path) if gguf is None else _Gguf.open(gguf)
    return Checkpoint(opened.config, opened.read, opened.rows, opened.codes)


@dataclass(frozen=True, slots=True)
class _Gguf:
    config: ModelConfig
    file: GgufFile

    @classmethod
    def open(cls, path: Path) -> Self:
        file = GgufFile.open(path)
        config = ModelConfig.from_gguf(
            file.metadata,
            has_output_weight="output.weight" in file.tensors,
            has_rope_factors="rope_freqs.weight" in file.tensors,
        )
        shapes = {gguf_name(name): shape for name, shape in weight_shapes(config).items()}
        check_names(path, shapes, file.tensors)
        for name, shape in shapes.items():
            check_shape(path, name, file.tensors[name].shape, shape)
            file.number(name)
        return cls(config, file)

    def read(self, name: str) -> Tensor:
        return self._unpair(name, torch.from_numpy(self.file.read(gguf_name(name))))

    def rows(self, name: str, indices: Tensor) -> Tensor:
        return torch.from_numpy(self.file.rows(gguf_name(name), indices.numpy()))

    def codes(self, name: str) -> Codes | None:
        stored_name = gguf_name(name)
        take_apart = self.file.number(stored_name).take_apart
        if take_apart is None:
            return None
        parts, num_rows = take_apart(self.file.stored(stored_name)), self.file.tensors[stored_name].shape[0]
        tensors = (torch.from_numpy(part).view(num_rows, -1) for part in (parts.codes, parts.scales, parts.minima))
        return Codes(parts.bits, *(self._unpair(name, tensor) for tensor in tensors))

    def _unpair(self, name: str, values: Tensor) -> Tensor:
        """Where the two of a rotary pair are neighbours: into halves of a head, as ours are."""
        heads = {"q_proj": self.config.num_heads, "k_proj": self.config.num_kv_heads}.get(name.split(".")[-2])
        if heads is None or not self.config.variant.has_paired_gguf:
            return values
        pairs = values.view(heads, self.config.head_dim // 2, 2, -1)
        return pairs.transpose(1, 2).reshape(values.shape)


@dataclass(frozen=True, slots=True)
class _Safetensors:
    """`homes` are the open files by the names of their tensors."""

    config: ModelConfig
    homes: Mapping[str, Any]

    @classmethod
    def open(cls, folder: Path) -> Self:
        generation = folder / "generation_config.json"
        config = ModelConfig.from_huggingface(
            read_json_object(folder / "config.json"),
            read_json_object(generation) if generation.exists() else None,
        )
        shapes = weight_shapes(config)
        homes = _homes(folder)
        ignored = {name for name in homes if name.endswith(_RECOMPUTED)}
        if config.tie_embeddings:
            ignored.add(HEAD)
        check_names(folder, shapes, homes.keys() - ignored)
        opened = {file: _open(file) for file in sorted(set(homes.values()))}
        for name, shape in shapes.items():
            _check(homes[name], opened[homes[name]], name, shape)
        return cls(config, {name: opened[homes[name]] for name in shapes})

    def read(self, name: str) -> Tensor:
        tensor: Tensor = self.homes[name].get_tensor(name)
        return tensor

    def rows(self, name: str, indices: Tensor) -> Tensor:
        return self.read(name).index_select(0, indices)

    def codes(self, name: str) -> Codes | None:
        return None


def _homes(folder: Path) -> dict[str, Path]:
    """Tensor name -> the safetensors file that holds it."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        return _homes_by_index(folder, index)
    file = folder / "model.safetensors"
    if not file.exists():
        raise WeightFileError(f"{folder}: neither model.safetensors nor {index.name} is there")
    return dict.fromkeys(_open(file).keys(), file)


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


def _open(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise WeightFileError(f"{file}: not a sound safetensors file: {error}") from None


def _check(file: Path, opened: Any, name: str, shape: Shape) -> None:
    check_present(file, [name], opened.keys())
    stored = opened.get_slice(name)
    check_shape(file, name, tuple(stored.get_shape()), shape)
    if stored.get_dtype() not in _STORED_AS_FLOAT:
        raise WeightFileError(f"{file}: tensor {name} has type {stored.get_dtype()}, not a float type")
