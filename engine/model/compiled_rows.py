"""Attention on a CPU for few queries of each sequence by our own function (rows.c): reads the KV where it lies.

Knows places of blocks and lengths. Must not know weights, layers or scheduling. A key is read once for all heads that
share it, which RowAttention's way, in PyTorch alone, cannot.
"""

from collections.abc import Sequence as List
from ctypes import c_float, c_int, c_long, c_void_p
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from engine.model.compiled import Function, compiled
from engine.model.kv_cache import KVCache
from engine.model.row_attention import Query

_BLOCK, _LANES, _MOST_SHARING, _MOST_SIZE = 16, 16, 16, 256
_ARGUMENTS = (
    *(c_void_p, c_long, c_void_p, c_long, c_void_p, c_void_p, c_long, c_void_p),
    *(c_long, c_long, c_long, c_float, c_int),
)


def rows_kernel(cache: KVCache, num_heads: int) -> Function | None:
    """None where the function cannot be had, or is not for these sizes."""
    size, sharing = cache.head_dim, num_heads // cache.num_kv_heads
    if cache.block_size != _BLOCK or size % _LANES or size > _MOST_SIZE or sharing > _MOST_SHARING:
        return None
    if cache.blocks.dtype is not torch.float32:
        return None
    return compiled("rows.c", "attend_rows", _ARGUMENTS)


@dataclass(frozen=True, slots=True)
class CompiledRows:
    """`asked` is [queries, 4]: the token in the batch, the first and last (exclusive) that it sees, counted from its
    first block, and where its blocks begin in `blocks`."""

    function: Function
    cache: KVCache
    asked: Tensor
    blocks: Tensor

    @classmethod
    def of(cls, queries: List[Query], cache: KVCache, function: Function) -> Self:
        asked: list[tuple[int, int, int, int]] = []
        blocks: list[int] = []
        for query in queries:
            unseen = query.first // _BLOCK
            begin = unseen * _BLOCK
            asked.append((query.index, query.first - begin, query.last - begin, len(blocks)))
            blocks += query.blocks[unseen : -(-query.last // _BLOCK)]
        return cls(function, cache, torch.tensor(asked), torch.tensor(blocks, dtype=torch.int32))

    def attend(self, layer: int, queries: Tensor, attended: Tensor) -> None:
        """Reads its rows of `queries` [tokens, heads, head_dim] and writes those of `attended`."""
        cache, (_, num_heads, size) = self.cache, queries.shape
        failed = self.function(
            cache.rows(layer).data_ptr(),
            cache.blocks.stride(0),
            queries.data_ptr(),
            queries.stride(0),
            attended.data_ptr(),
            self.asked.data_ptr(),
            len(self.asked),
            self.blocks.data_ptr(),
            cache.num_kv_heads,
            num_heads // cache.num_kv_heads,
            size,
            size**-0.5,
            torch.get_num_threads(),
        )
        assert not failed, "the sizes were looked at before"
