"""Attention for many queries of one sequence: PyTorch's fused one, over keys and values lying together.

Knows block tables and masks. Must not know weights, layers or scheduling. Works on any device.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from engine.model.kv_cache import KVCache, Span


@dataclass(frozen=True, slots=True)
class ChunkAttention:
    """The batch's tokens `first` to `last` (exclusive) attend to `num_keys` tokens in the cache's `panels`; where
    these are None, to themselves."""

    cache: KVCache
    first: int
    last: int
    num_keys: int
    panels: Tensor | None
    mask: Tensor | None

    @classmethod
    def of(cls, span: Span, first: int, window: int | None, cache: KVCache) -> Self:
        """`first` is the place of the span's first token in the batch."""
        hidden = 0 if window is None else max(0, span.start + 1 - window) // cache.block_size
        offset = hidden * cache.block_size
        is_whole = span.start == 0
        needs_mask = not is_whole or (window is not None and window < span.end)
        return cls(
            cache=cache,
            first=first,
            last=first + span.num_queries,
            num_keys=span.end - offset,
            panels=None if is_whole else _panels(span, hidden, cache),
            mask=_mask(span, offset, window, cache.blocks.dtype, cache.blocks.device) if needs_mask else None,
        )

    def attend(self, layer: int, queries: Tensor, fresh: Tensor, attended: Tensor) -> None:
        """Reads its part of `queries` [tokens, heads, head_dim] and, where the chunk begins its sequence, of `fresh`
        [tokens, 2 * kv_heads, head_dim], the keys and values of the batch; writes its part of `attended`."""
        keys, values = self._keys_and_values(layer, fresh)
        found = scaled_dot_product_attention(
            queries[self.first : self.last].transpose(0, 1)[None],
            keys[None],
            values[None],
            attn_mask=self.mask,
            is_causal=self.mask is None,
            enable_gqa=queries.shape[1] != len(keys),
        )
        attended[self.first : self.last] = found[0].transpose(0, 1)

    def _keys_and_values(self, layer: int, fresh: Tensor) -> tuple[Tensor, Tensor]:
        """Each [kv_heads, keys, head_dim]."""
        num_heads = self.cache.num_kv_heads
        if self.panels is None:
            both = fresh[self.first : self.last].transpose(0, 1)
        else:
            together = self.cache.panels(layer).index_select(0, self.panels)
            both = together.view(2 * num_heads, -1, self.cache.head_dim)[:, : self.num_keys]
        return both[:num_heads], both[num_heads:]


def _panels(span: Span, hidden: int, cache: KVCache) -> Tensor:
    """[2 * kv_heads * blocks], head by head, so that what they hold lies together as [2 * kv_heads, keys, ...]."""
    device = cache.blocks.device
    blocks = torch.tensor(span.blocks[hidden : -(-span.end // cache.block_size)], device=device)
    heads = torch.arange(2 * cache.num_kv_heads, device=device)
    return (heads[:, None] + blocks * cache.panels_per_block).view(-1)


def _mask(span: Span, offset: int, window: int | None, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[queries, keys], 0 where a query may look and -inf where it may not; the first key is token `offset`."""
    positions = torch.arange(offset, span.end, device=device)
    query = torch.arange(span.start, span.end, device=device)[:, None]
    is_hidden = positions > query
    if window is not None:
        is_hidden |= positions <= query - window
    return torch.zeros(is_hidden.shape, dtype=dtype, device=device).masked_fill_(is_hidden, float("-inf"))
