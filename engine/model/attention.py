"""Paged attention of a batch: writes its keys and values and lets each query read its sequence's.

Knows which way of reading suits the device and the number of queries. Must not know weights, layers or scheduling.
"""

import importlib.util
from collections.abc import Callable, Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from engine.model.chunk_attention import ChunkAttention
from engine.model.compiled_chunks import CompiledChunks, chunks_kernel
from engine.model.compiled_layers import prepare_layers, stored
from engine.model.compiled_rows import CompiledRows, rows_kernel
from engine.model.kv_cache import KVCache, Span
from engine.model.row_attention import Query, RowAttention, in_groups

# From so many queries of one sequence on, taking some at once is faster than reading the context for each.
_CHUNK_FROM = 4

Attend = Callable[[int, Tensor, Tensor], Tensor]
"""(layer, queries [tokens, heads, head_dim], keys and values of the batch [tokens, 2 * kv_heads, head_dim]) -> what the
queries found, of their shape."""


@dataclass(frozen=True, slots=True)
class Paging:
    """For one batch: `rows` [tokens * 2 * kv_heads] of the cache are where its keys and values go, and there is one
    way of reading for all layers that look equally far back."""

    cache: KVCache
    rows: Tensor
    ways: Mapping[int | None, Attend]
    windows: tuple[int | None, ...]

    @classmethod
    def of(cls, spans: List[Span], cache: KVCache, num_heads: int, windows: tuple[int | None, ...]) -> Self:
        """`windows` says for each layer how many tokens it looks back, itself included; None is all."""
        plan = _way_of(cache.blocks.device)
        ways = {window: plan(spans, cache, num_heads, window) for window in set(windows)}
        return cls(cache, _written_rows(spans, cache), ways, windows)

    def attend(self, layer: int, queries: Tensor, fresh: Tensor) -> Tensor:
        """Stores the batch's keys and values, `fresh` [tokens, 2 * kv_heads, head_dim], and gives for `queries`
        [tokens, heads, head_dim] what they find, of the same shape; all of the cache's dtype."""
        rows = self.cache.rows(layer)
        if not stored(fresh, rows, self.rows):
            rows.index_copy_(0, self.rows, fresh.flatten(0, 1))
        return self.ways[self.windows[layer]](layer, queries, fresh)


def kv_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """In what the KV of a model of `dtype` is kept: on a CPU the in-place reading knows float32 alone."""
    return torch.float32 if device.type == "cpu" else dtype


def prepare(cache: KVCache, num_heads: int) -> None:
    """Compiles what is compiled where it runs, so that no request waits for it."""
    if cache.blocks.device.type == "cpu":
        rows_kernel(cache, num_heads)
        chunks_kernel(cache, num_heads)
        prepare_layers()


def _way_of(device: torch.device) -> Callable[[List[Span], KVCache, int, int | None], Attend]:
    """The one place that chooses."""
    if device.type == "cpu":
        return CpuAttention.of
    # Triton comes with PyTorch for CUDA on Linux alone.
    if device.type == "cuda" and importlib.util.find_spec("triton") is not None:
        from engine.model.triton_attention import TritonAttention

        return TritonAttention.of
    return GatheredAttention.of


@dataclass(frozen=True, slots=True)
class CpuAttention:
    """What is read in place: few queries of a sequence, and many where there is our function; else they are over a copy
    of their context."""

    in_place: tuple[RowAttention | CompiledRows | CompiledChunks, ...]
    copied: tuple[ChunkAttention, ...]

    @classmethod
    def of(cls, spans: List[Span], cache: KVCache, num_heads: int, window: int | None) -> Self:
        few: list[Query] = []
        many: list[tuple[int, Span]] = []
        index = 0
        for span in spans:
            if span.num_queries >= _CHUNK_FROM:
                many.append((index, span))
            else:
                few += _queries(span, index, window)
            index += span.num_queries
        rows = _in_place(few, index, cache, num_heads)
        function = chunks_kernel(cache, num_heads)
        if function is not None and many:
            return cls((*rows, CompiledChunks.of(many, window, cache, num_heads, function)), ())
        return cls(rows, tuple(ChunkAttention.of(span, index, window, cache) for index, span in many))

    def __call__(self, layer: int, queries: Tensor, fresh: Tensor) -> Tensor:
        attended = torch.empty_like(queries, memory_format=torch.contiguous_format)
        for group in self.in_place:
            group.attend(layer, queries, attended)
        for chunk in self.copied:
            chunk.attend(layer, queries, fresh, attended)
        return attended


@dataclass(frozen=True, slots=True)
class GatheredAttention:
    """Every sequence over a copy of its context."""

    chunks: tuple[ChunkAttention, ...]

    @classmethod
    def of(cls, spans: List[Span], cache: KVCache, num_heads: int, window: int | None) -> Self:
        chunks, index = [], 0
        for span in spans:
            chunks.append(ChunkAttention.of(span, index, window, cache))
            index += span.num_queries
        return cls(tuple(chunks))

    def __call__(self, layer: int, queries: Tensor, fresh: Tensor) -> Tensor:
        attended = torch.empty_like(queries, memory_format=torch.contiguous_format)
        for chunk in self.chunks:
            chunk.attend(layer, queries, fresh, attended)
        return attended


def _in_place(
    queries: List[Query], num_tokens: int, cache: KVCache, num_heads: int
) -> tuple[RowAttention | CompiledRows, ...]:
    kernel = rows_kernel(cache, num_heads)
    if kernel is not None and queries:
        return (CompiledRows.of(queries, cache, kernel),)
    return tuple(RowAttention.of(group, num_tokens, cache, num_heads) for group in in_groups(queries, num_heads))


def _queries(span: Span, index: int, window: int | None) -> list[Query]:
    return [
        Query(index + position - span.start, max(0, position + 1 - window) if window else 0, position + 1, span.blocks)
        for position in range(span.start, span.end)
    ]


def _written_rows(spans: List[Span], cache: KVCache) -> Tensor:
    block_size = cache.block_size
    places = [
        span.blocks[position // block_size] * cache.panels_per_block * block_size + position % block_size
        for span in spans
        for position in range(span.start, span.end)
    ]
    device = cache.blocks.device
    heads = torch.arange(2 * cache.num_kv_heads, device=device) * block_size
    return (torch.tensor(places, device=device)[:, None] + heads).view(-1)
