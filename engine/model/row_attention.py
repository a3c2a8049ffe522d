"""Attention on a CPU for few queries of each sequence: reads the KV where it lies and copies none of it.

Knows the places of keys and values, lengths and masks. Must not know weights, layers or scheduling.

Each query head is a row of a sparse matrix whose columns are rows of the cache: a sampled product gives its scores,
and a bag of embeddings, weighted by their softmax, its values. PyTorch's fused attention would need the context of
each sequence copied together first, and multiplies matrices of a row or three badly.
"""

import warnings
from collections.abc import Sequence as List
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from engine.model.kv_cache import KVCache

# Queries of different lengths are padded to the longest of their group. A further group costs a few calls a layer,
# which is what about so many scores cost.
_FREE_PADDING = 2000


@dataclass(frozen=True, slots=True)
class Query:
    """The batch's token `index` looks at the tokens `first` to `last` (exclusive) of the sequence in `blocks`."""

    index: int
    first: int
    last: int
    blocks: List[int]


@dataclass(frozen=True, slots=True)
class RowAttention:
    """`queries` [rows] are tokens of the batch; None stands for all, in order. `scores` [rows, heads, keys] shows the
    values of `pattern`."""

    queries: Tensor | None
    pattern: Tensor
    scores: Tensor
    places: Tensor
    ends: Tensor
    mask: Tensor | None
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    @classmethod
    def of(cls, queries: List[Query], num_tokens: int, cache: KVCache, num_heads: int) -> Self:
        """Of a batch of `num_tokens`."""
        indices = [query.index for query in queries]
        first = min(query.first for query in queries) // cache.block_size
        num_keys = max(query.last for query in queries) - first * cache.block_size
        places = _places(queries, first, num_keys, cache, num_heads)
        num_rows = len(places)
        ends = torch.arange(0, places.numel() + 1, num_keys)
        step = cache.num_kv_heads * cache.block_size
        # Of all layers alike, so that one pattern fits them all.
        num_columns = len(cache.blocks.view(-1, cache.head_dim)) - (2 * cache.blocks.shape[1] - 1) * step
        pattern = _sparse(ends, places.view(-1), (num_rows, num_columns))
        rows = [cache.rows(layer) for layer in range(cache.blocks.shape[1])]
        return cls(
            queries=None if indices == list(range(num_tokens)) else torch.tensor(indices),
            pattern=pattern,
            scores=pattern.values().view(len(queries), num_heads, num_keys),
            places=places.view(-1),
            ends=ends,
            mask=_mask(queries, first * cache.block_size, num_keys),
            keys=tuple(layer[:num_columns].t() for layer in rows),
            values=tuple(layer[step : step + num_columns] for layer in rows),
        )

    def attend(self, layer: int, queries: Tensor, attended: Tensor) -> None:
        """Reads its rows of `queries` [tokens, heads, head_dim] and writes those of `attended`."""
        if self.queries is None:
            attended.copy_(self._find(layer, queries))
        else:
            attended.index_copy_(0, self.queries, self._find(layer, queries.index_select(0, self.queries)))

    def _find(self, layer: int, queries: Tensor) -> Tensor:
        """For its own rows alone, each [rows, heads, head_dim]."""
        scale = queries.shape[2] ** -0.5
        # What stood there counts nothing, but it must be finite: so nothing is added in place below.
        torch.sparse.sampled_addmm(
            self.pattern, queries.flatten(0, 1), self.keys[layer], beta=0.0, alpha=scale, out=self.pattern
        )
        scores = self.scores if self.mask is None else self.scores + self.mask
        found = torch.embedding_bag(
            self.values[layer],
            self.places,
            self.ends,
            mode=0,
            per_sample_weights=scores.softmax(dim=-1).view(-1),
            include_last_offset=True,
        )[0]
        return found.view(queries.shape)


def in_groups(queries: List[Query], num_heads: int) -> list[list[Query]]:
    """Like lengths together, so that little is padded; in each, in the batch's order."""
    groups: list[list[Query]] = []
    useful = padding = 0
    for query in sorted(queries, key=_length, reverse=True):
        short = (_length(groups[-1][0]) - _length(query)) * num_heads if groups else 0
        if not groups or padding + short > max(_FREE_PADDING, useful // 8):
            groups.append([])
            useful = padding = short = 0
        groups[-1].append(query)
        useful += _length(query) * num_heads
        padding += short
    return [sorted(group, key=_index) for group in groups]


def _index(query: Query) -> int:
    return query.index


def _length(query: Query) -> int:
    return query.last - query.first


def _places(queries: List[Query], first: int, num_keys: int, cache: KVCache, num_heads: int) -> Tensor:
    """[queries * heads, keys]: rows of the cache. Beyond a query's end stands some block of its own."""
    num_blocks = -(-num_keys // cache.block_size)
    tables = torch.tensor([_table(query, first, num_blocks, cache.block_size) for query in queries])
    head = torch.arange(num_heads) // (num_heads // cache.num_kv_heads)
    panels = tables[:, None, :, None] * cache.panels_per_block + head[:, None, None]
    places = panels * cache.block_size + torch.arange(cache.block_size)
    return places.view(len(queries) * num_heads, -1)[:, :num_keys].contiguous()


def _table(query: Query, first: int, num_blocks: int, block_size: int) -> list[int]:
    end = -(-query.last // block_size)
    table = list(query.blocks[first : min(end, first + num_blocks)])
    return table + [query.blocks[end - 1]] * (num_blocks - len(table))


def _mask(queries: List[Query], offset: int, num_keys: int) -> Tensor | None:
    """[queries, 1, keys], -inf where there is nothing to see; None if every query sees all."""
    firsts = torch.tensor([query.first - offset for query in queries])[:, None, None]
    lasts = torch.tensor([query.last - offset for query in queries])[:, None, None]
    position = torch.arange(num_keys)
    is_hidden = (position < firsts) | (position >= lasts)
    if not is_hidden.any():
        return None
    return torch.zeros(is_hidden.shape).masked_fill_(is_hidden, float("-inf"))


def _sparse(ends: Tensor, columns: Tensor, size: tuple[int, int]) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(ends, columns, torch.zeros(len(columns)), size=size, check_invariants=False)
