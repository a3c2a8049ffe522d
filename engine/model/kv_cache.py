"""The tensor that holds the KV of all blocks, and the names of places in it.

Knows how a block lies in memory. Must not know what a block stands for, weights, or how attention is computed.

A block is one piece of memory over all layers, so that it moves between tiers and engines in one copy. Within it, the
keys of one layer's head are one piece as well, so that reading them in place runs along the memory.
"""

import mmap
from collections.abc import Sequence as List
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from engine.model.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Span:
    """A run of one sequence's tokens to compute, `start` to `end`, with the KV blocks from the sequence's first."""

    start: int
    end: int
    blocks: List[int]

    @property
    def num_queries(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class KVCache:
    """`blocks` is [blocks, layers, 2 (keys, values), kv_heads, block_size, head_dim]."""

    blocks: Tensor

    @classmethod
    def allocate(
        cls, config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> Self:
        """Raises MemoryError if the device lacks the room."""
        shape = (num_blocks, config.num_layers, 2, config.num_kv_heads, block_size, config.head_dim)
        try:
            return cls(_zeros(shape, dtype, device))
        except (RuntimeError, OSError):
            size_gib = num_blocks * bytes_per_block(config, block_size, dtype) / 2**30
            raise MemoryError(f"{device} has no room for {size_gib:.1f} GiB of KV cache") from None

    @property
    def keys(self) -> Tensor:
        """[layers, blocks, kv_heads, block_size, head_dim]"""
        return self.blocks[:, :, 0].transpose(0, 1)

    @property
    def values(self) -> Tensor:
        """[layers, blocks, kv_heads, block_size, head_dim]"""
        return self.blocks[:, :, 1].transpose(0, 1)

    @property
    def num_kv_heads(self) -> int:
        return self.blocks.shape[3]

    @property
    def block_size(self) -> int:
        return self.blocks.shape[4]

    @property
    def head_dim(self) -> int:
        return self.blocks.shape[5]

    @property
    def panels_per_block(self) -> int:
        """A panel is the keys, or the values, of one layer's head in one block: [block_size, head_dim]."""
        return self.blocks.shape[1] * 2 * self.num_kv_heads

    def panels(self, layer: int) -> Tensor:
        """[panels, block_size * head_dim], counted from the first block's first panel of the layer: the places of a
        block's panels are then the same for all layers."""
        panels = self.blocks.view(-1, self.block_size * self.head_dim)
        return panels[layer * 2 * self.num_kv_heads :]

    def rows(self, layer: int) -> Tensor:
        """[rows, head_dim], a row being one token's key or value of one head; counted like the panels."""
        rows = self.blocks.view(-1, self.head_dim)
        return rows[layer * 2 * self.num_kv_heads * self.block_size :]


def bytes_per_block(config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """What a KV block takes over all layers, keys and values."""
    return 2 * config.num_layers * block_size * config.num_kv_heads * config.head_dim * dtype.itemsize


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros cost no memory until they are written."""
    if device.type != "cpu" or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(shape, dtype=dtype, device=device)
    # Private: of shared memory most systems make no huge pages. A step reads all over the cache: with pages of 4 KiB,
    # looking up the pages costs a fifth of the time, and the first write to each costs more than what is written.
    num_bytes = torch.Size(shape).numel() * dtype.itemsize
    room = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    room.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(room, dtype=dtype).view(shape)
