"""Attention on a CPU for few queries of each sequence by our own function (rows.c): reads the KV where it lies.

Knows places of blocks and lengths. Must not know weights, layers or scheduling. A key is read once for all heads that
share it, which RowAttention's way, in PyTorch alone, cannot.
"""

from collections.abc import Sequence as List
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from engine.model.compiled import Function
from engine.model.compiled_attention import BLOCK, attend, attention_kernel
from engine.model.kv_cache import KVCache
from engine.model.row_attention import Query

_MOST_SHARING = 16


def rows_kernel(cache: KVCache, num_heads: int) -> Function | None:
    """None where the function cannot be had, or is not for these sizes."""
    return attention_kernel("rows.c", "attend_rows", cache, num_heads, _MOST_SHARING)


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
            unseen = query.first // BLOCK
            begin = unseen * BLOCK
            asked.append((query.index, query.first - begin, query.last - begin, len(blocks)))
            blocks += query.blocks[unseen : -(-query.last // BLOCK)]
        return cls(function, cache, torch.tensor(asked), torch.tensor(blocks, dtype=torch.int32))

    def attend(self, layer: int, queries: Tensor, attended: Tensor) -> None:
        """Reads its rows of `queries` [tokens, heads, head_dim] and writes those of `attended`."""
        attend(self.function, self.cache, layer, queries, attended, self.asked, self.blocks)
