"""Attention for many queries of one sequence: PyTorch's fused one, over keys and values lying together.

Knows block tables and masks. Must not know weights, layers or scheduling. Works on any device.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from engine.model.kv_cache import KVCache, Span

# A prompt's early queries see few of its keys, and the fused kernel computes all of them for all: in pieces of so many
# queries a prompt of 256 tokens costs three quarters.
_PIECE = 64


@dataclass(frozen=True, slots=True)
class _Piece:
    """The tokens `first` to `last` (exclusive) of the chunk see the first `num_keys` keys, or what `mask` leaves of
    them; without one, each sees as many as stand before it."""

    first: int
    last: int
    num_keys: int
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class ChunkAttention:
    """The batch's tokens `first` to `last` (exclusive) attend to the cache's `panels`; where these are None, to
    themselves."""

    cache: KVCache
    first: int
    last: int
    panels: Tensor | None
    pieces: tuple[_Piece, ...]

    @classmethod
    def of(cls, span: Span, first: int, window: int | None, cache: KVCache) -> Self:
        """`first` is the place of the span's first token in the batch."""
        unseen_blocks = 0 if window is None else max(0, span.start + 1 - window) // cache.block_size
        offset = unseen_blocks * cache.block_size
        is_worth_cutting = span.end - offset <= 2 * span.num_queries
        size = _PIECE if is_worth_cutting else span.num_queries
        return cls(
            cache=cache,
            first=first,
            last=first + span.num_queries,
            panels=None if span.start == 0 else _panels(span, unseen_blocks, cache),
            pieces=tuple(
                _piece(span, start, min(start + size, span.end), offset, window, cache)
                for start in range(span.start, span.end, size)
            ),
        )

    def attend(self, layer: int, queries: Tensor, fresh: Tensor, attended: Tensor) -> None:
        """Reads its part of `queries` [tokens, heads, head_dim] and, where the chunk begins its sequence, of `fresh`
        [tokens, 2 * kv_heads, head_dim], the keys and values of the batch; writes its part of `attended`."""
        keys, values = self._keys_and_values(layer, fresh)
        asking = queries[self.first : self.last].transpose(0, 1)[None]
        found = attended[self.first : self.last]
        for piece in self.pieces:
            answer = scaled_dot_product_attention(
                asking[:, :, piece.first : piece.last],
                keys[:, :, : piece.num_keys],
                values[:, :, : piece.num_keys],
                attn_mask=piece.mask,
                is_causal=piece.mask is None,
                enable_gqa=queries.shape[1] != self.cache.num_kv_heads,
            )
            found[piece.first : piece.last] = answer[0].transpose(0, 1)

    def _keys_and_values(self, layer: int, fresh: Tensor) -> tuple[Tensor, Tensor]:
        """Each [1, kv_heads, keys, head_dim]."""
        num_heads = self.cache.num_kv_heads
        if self.panels is None:
            both = fresh[self.first : self.last].transpose(0, 1)
        else:
            both = self.cache.panels(layer).index_select(0, self.panels).view(2 * num_heads, -1, self.cache.head_dim)
        return both[None, :num_heads], both[None, num_heads:]


def _panels(span: Span, unseen_blocks: int, cache: KVCache) -> Tensor:
    """[2 * kv_heads * blocks], head by head, so that what they hold lies together as [2 * kv_heads, keys, ...]."""
    device = cache.blocks.device
    blocks = torch.tensor(span.blocks[unseen_blocks : -(-span.end // cache.block_size)], device=device)
    heads = torch.arange(2 * cache.num_kv_heads, device=device)
    return (heads[:, None] + blocks * cache.panels_per_block).view(-1)


def _piece(span: Span, start: int, end: int, offset: int, window: int | None, cache: KVCache) -> _Piece:
    """Of the tokens `start` to `end` of the sequence; the first key is its token `offset`."""
    sees_all_before = start == offset and (window is None or window >= end - offset)
    mask = None if sees_all_before else _mask(start, end, offset, window, cache)
    return _Piece(start - span.start, end - span.start, end - offset, mask)


def _mask(start: int, end: int, offset: int, window: int | None, cache: KVCache) -> Tensor:
    """[queries, keys], 0 where a query may look and -inf where it may not."""
    device = cache.blocks.device
    positions = torch.arange(offset, end, device=device)
    query = torch.arange(start, end, device=device)[:, None]
    is_hidden = positions > query
    if window is not None:
        is_hidden |= positions <= query - window
    return torch.zeros(is_hidden.shape, dtype=cache.blocks.dtype, device=device).masked_fill_(is_hidden, float("-inf"))
