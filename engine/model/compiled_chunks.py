"""Attention on a CPU for many queries of a sequence by our own function (chunks.c): reads the KV where it lies.

Knows places of blocks and lengths. Must not know weights, layers or scheduling. What ChunkAttention, PyTorch's way,
copies together is read in place, and of a prompt's early queries only what they see is computed.
"""

from collections.abc import Sequence as List
from ctypes import c_long
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from engine.model.compiled import Function
from engine.model.compiled_attention import BLOCK, attend, attention_kernel
from engine.model.kv_cache import KVCache, Span

_MOST_ROWS = 96


def chunks_kernel(cache: KVCache, num_heads: int) -> Function | None:
    """None where the function cannot be had, or is not for these sizes."""
    return attention_kernel("chunks.c", "attend_chunks", cache, num_heads, _MOST_ROWS, (c_long,))


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
            unseen = 0 if window is None else max(0, span.start + 1 - window) // BLOCK
            for start in range(span.start, span.end, most):
                count, position = min(most, span.end - start), start - unseen * BLOCK
                tiles.append((index + start - span.start, count, position, len(blocks)))
            blocks += span.blocks[unseen : -(-span.end // BLOCK)]
        return cls(function, cache, window, torch.tensor(tiles), torch.tensor(blocks, dtype=torch.int32))

    def attend(self, layer: int, queries: Tensor, attended: Tensor) -> None:
        """Reads its rows of `queries` [tokens, heads, head_dim] and writes those of `attended`."""
        attend(self.function, self.cache, layer, queries, attended, self.tiles, self.blocks, self.window or 0)
