"""Paged attention on a GPU: one Triton kernel for prompts and single tokens alike, which reads the KV where it lies.

Knows block tables and how a block lies in memory. Must not know weights, layers or scheduling.

A program computes a tile: a few queries of one sequence, for all query heads that share one head of keys. It runs along
the context with a running maximum and sum, so that no scores are kept.
"""

from collections.abc import Sequence as List
from dataclasses import dataclass
from typing import Any, Self

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.model.kv_cache import KVCache, Span

# Queries of a tile, and keys of a pass; a matrix product on a GPU wants at least 16 rows.
_TILE_ROWS = 64
_PASS_KEYS = 64


@dataclass(frozen=True, slots=True)
class TritonAttention:
    """`tiles` [tiles, 4] are: the first query's place in the batch, its position in its sequence, the number of
    queries, and where the sequence's blocks begin in `tables`."""

    cache: KVCache
    tiles: Tensor
    tables: Tensor
    num_tile_queries: int
    window: int

    @classmethod
    def of(cls, spans: List[Span], cache: KVCache, num_heads: int, window: int | None) -> Self:
        group = triton.next_power_of_2(num_heads // cache.num_kv_heads)
        longest = max(span.num_queries for span in spans)
        num_tile_queries = max(16 // group, min(_TILE_ROWS // group, triton.next_power_of_2(longest)), 1)
        tiles: list[tuple[int, int, int, int]] = []
        table: list[int] = []
        index = 0
        for span in spans:
            for start in range(span.start, span.end, num_tile_queries):
                size = min(num_tile_queries, span.end - start)
                tiles.append((index + start - span.start, start, size, len(table)))
            table += span.blocks[: -(-span.end // cache.block_size)]
            index += span.num_queries
        device = cache.blocks.device
        return cls(
            cache=cache,
            tiles=torch.tensor(tiles, dtype=torch.int32, device=device),
            tables=torch.tensor(table, dtype=torch.int32, device=device),
            num_tile_queries=num_tile_queries,
            window=0 if window is None else window,
        )

    def __call__(self, layer: int, queries: Tensor, fresh: Tensor) -> Tensor:
        """[tokens, heads, head_dim] -> the same shape. `fresh` is in the cache already."""
        cache = self.cache
        queries = queries.contiguous()
        attended = torch.empty_like(queries)
        num_heads, head_dim = queries.shape[1:]
        group = num_heads // cache.num_kv_heads
        kernel: Any = _attend
        kernel[(len(self.tiles), cache.num_kv_heads)](
            queries,
            cache.blocks[0, layer],
            attended,
            self.tiles,
            self.tables,
            head_dim**-0.5,
            self.window,
            cache.blocks.stride(0),
            HEADS=num_heads,
            GROUP=group,
            GROUP_ROOM=triton.next_power_of_2(group),
            TILE_QUERIES=self.num_tile_queries,
            KV_HEADS=cache.num_kv_heads,
            BLOCK_SIZE=cache.block_size,
            HEAD_DIM=head_dim,
            HEAD_ROOM=max(16, triton.next_power_of_2(head_dim)),
            PASS_KEYS=_PASS_KEYS,
        )
        return attended


def _attend_tile(
    queries: Any,
    layer: Any,
    attended: Any,
    tiles: Any,
    tables: Any,
    scale: Any,
    window: Any,
    block_stride: Any,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_ROOM: tl.constexpr,
    TILE_QUERIES: tl.constexpr,
    KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_ROOM: tl.constexpr,
    PASS_KEYS: tl.constexpr,
) -> None:
    tile = tiles + tl.program_id(0) * 4
    kv_head = tl.program_id(1)
    first, start, size = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2)
    table = tables + tl.load(tile + 3)
    # Rows are queries by heads of the group; columns what a head has, each with room up to a power of two.
    row = tl.arange(0, TILE_QUERIES * GROUP_ROOM)
    query, member = row // GROUP_ROOM, row % GROUP_ROOM
    column = tl.arange(0, HEAD_ROOM)
    is_row = (query < size) & (member < GROUP)
    is_column = column < HEAD_DIM
    places = ((first + query) * HEADS + kv_head * GROUP + member)[:, None] * HEAD_DIM + column[None, :]
    asked = tl.load(queries + places, mask=is_row[:, None] & is_column[None, :], other=0.0)
    position = start + query
    best = tl.full((TILE_QUERIES * GROUP_ROOM,), float("-inf"), tl.float32)
    total = tl.zeros((TILE_QUERIES * GROUP_ROOM,), tl.float32)
    found = tl.zeros((TILE_QUERIES * GROUP_ROOM, HEAD_ROOM), tl.float32)
    begin = tl.where(window > 0, tl.maximum(start - window + 1, 0), 0) // PASS_KEYS * PASS_KEYS
    for offset in range(begin, start + size, PASS_KEYS):
        key = offset + tl.arange(0, PASS_KEYS)
        is_key = key < start + size
        block = tl.load(table + key // BLOCK_SIZE, mask=is_key, other=0).to(tl.int64)
        rows = block * block_stride + kv_head * BLOCK_SIZE * HEAD_DIM + key % BLOCK_SIZE * HEAD_DIM
        there = is_key[:, None] & is_column[None, :]
        keys = tl.load(layer + rows[:, None] + column[None, :], mask=there, other=0.0)
        scores = tl.dot(asked, tl.trans(keys), input_precision="ieee") * scale
        is_seen = (key[None, :] <= position[:, None]) & is_row[:, None]
        is_seen = is_seen & ((window == 0) | (key[None, :] > position[:, None] - window))
        scores = tl.where(is_seen, scores, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, axis=1))
        # A row that has seen nothing yet has no maximum to take away.
        shift = tl.where(new_best == float("-inf"), 0.0, new_best)
        weights = tl.exp(scores - shift[:, None])
        kept = tl.exp(best - shift)
        values = tl.load(
            layer + rows[:, None] + column[None, :] + KV_HEADS * BLOCK_SIZE * HEAD_DIM, mask=there, other=0.0
        )
        total = total * kept + tl.sum(weights, axis=1)
        found = found * kept[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        best = new_best
    found = found / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(attended + places, found.to(attended.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])


_attend = triton.jit(_attend_tile)
