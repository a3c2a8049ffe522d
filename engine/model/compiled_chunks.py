"""Attention on a CPU for many queries of a sequence by our own function (chunks.c): reads the KV where it lies.

Knows places of blocks and lengths. Must not know weights, layers or scheduling. What ChunkAttention, PyTorch's way,
copies together is read in place, and of a prompt's early queries only what they see is computed.
"""

from collections.abc import Sequence as List
from ctypes import c_float, c_int, c_long, c_void_p
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from engine.model.compiled import Function, compiled
from engine.model.kv_cache import KVCache, Span

_BLOCK, _LANES, _MOST_ROWS, _MOST_SIZE = 16, 16, 96, 256
_ARGUMENTS = (
    *(c_void_p, c_long, c_void_p, c_long, c_void_p, c_void_p, c_long, c_void_p),
    *(c_long, c_long, c_long, c_long, c_float, c_int),
)


def chunks_kernel(cache: KVCache, num_heads: int) -> Function | None:
    """None where the function cannot be had, or is not for these sizes."""
    size, sharing = cache.head_dim, num_heads // cache.num_kv_heads
    if cache.block_size != _BLOCK or size % _LANES or size > _MOST_SIZE or sharing > _MOST_ROWS:
        return None
    if cache.blocks.dtype is not torch.float32:
        return None
    return compiled("chunks.c", "attend_chunks", _ARGUMENTS)


@dataclass(frozen=True, slots=True)
class CompiledChunks:
    """`tiles` is [tiles, 4]: the first token in the batch, how many there are, the first one's position counted from
    the sequence's first seen block, and where its blocks begin in `blocks`."""

    function: Function
    cache: KVCache
    window: int | None
    tiles: Tensor
    blocks: Tensor

    @classmethod
    def of(
        cls, spans: List[tuple[int, Span]], window: int | None, cache: KVCache, num_heads: int, function: Function
    ) -> Self:
        """Each span with the place of its first token in the batch."""
        most = _MOST_ROWS * cache.num_kv_heads // num_heads
        tiles: list[tuple[int, int, int, int]] = []
        blocks: list[int] = []
        for index, span in spans:
            unseen = 0 if window is None else max(0, span.start + 1 - window) // _BLOCK
            for start in range(span.start, span.end, most):
                count, position = min(most, span.end - start), start - unseen * _BLOCK
                tiles.append((index + start - span.start, count, position, len(blocks)))
            blocks += span.blocks[unseen : -(-span.end // _BLOCK)]
        return cls(function, cache, window, torch.tensor(tiles), torch.tensor(blocks, dtype=torch.int32))

    def attend(self, layer: int, queries: Tensor, attended: Tensor) -> None:
        """Reads its rows of `queries` [tokens, heads, head_dim] and writes those of `attended`."""
        cache, (_, num_heads, size) = self.cache, queries.shape
        failed = self.function(
            cache.rows(layer).data_ptr(),
            cache.blocks.stride(0),
            queries.data_ptr(),
            queries.stride(0),
            attended.data_ptr(),
            self.tiles.data_ptr(),
            len(self.tiles),
            self.blocks.data_ptr(),
            self.window or 0,
            cache.num_kv_heads,
            num_heads // cache.num_kv_heads,
            size,
            size**-0.5,
            torch.get_num_threads(),
        )
        assert not failed, "the sizes were looked at before"
