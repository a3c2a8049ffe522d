"""Paged attention: where the KV of each token lies, and how queries read it.

Knows KV tensors, block tables and masks. Must not know weights, layers or scheduling.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from engine.model.config import ModelConfig


@dataclass(frozen=True, slots=True)
class KVCache:
    """Keys and values of all layers, each [layers, blocks, block_size, kv_heads, head_dim]."""

    keys: Tensor
    values: Tensor

    @classmethod
    def allocate(
        cls, config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> Self:
        """Raises MemoryError if the device lacks the room."""
        shape = (config.num_layers, num_blocks, block_size, config.num_kv_heads, config.head_dim)
        try:
            # Zeros cost no memory until they are written.
            return cls(*(torch.zeros(shape, dtype=dtype, device=device) for _ in range(2)))
        except RuntimeError:
            size_gib = num_blocks * bytes_per_block(config, block_size, dtype) / 2**30
            raise MemoryError(f"{device} has no room for {size_gib:.1f} GiB of KV cache") from None

    @property
    def block_size(self) -> int:
        return self.keys.shape[2]


def bytes_per_block(config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """What a KV block takes over all layers, keys and values."""
    return 2 * config.num_layers * block_size * config.num_kv_heads * config.head_dim * dtype.itemsize


@dataclass(frozen=True, slots=True)
class Span:
    """A run of one sequence's tokens to compute, `start` to `end`, with the KV blocks from the sequence's first."""

    start: int
    end: int
    blocks: Sequence[int]


@dataclass(frozen=True, slots=True)
class _Read:
    """The queries [first, last) of the batch attend to `num_keys` tokens in `blocks`."""

    first: int
    last: int
    num_keys: int
    blocks: Tensor
    mask: Tensor | None
    is_causal: bool


@dataclass(frozen=True, slots=True)
class Paging:
    """For one batch, the same for all layers: `slots` [tokens] says where each token's KV is written."""

    slots: Tensor
    reads: tuple[_Read, ...]

    @classmethod
    def of(cls, spans: Sequence[Span], block_size: int, dtype: torch.dtype, device: torch.device) -> Self:
        slots = [
            span.blocks[position // block_size] * block_size + position % block_size
            for span in spans
            for position in range(span.start, span.end)
        ]
        reads, first = [], 0
        for span in spans:
            reads.append(_read(span, first, block_size, dtype, device))
            first = reads[-1].last
        return cls(torch.tensor(slots, device=device), tuple(reads))


def write(cache: KVCache, layer: int, keys: Tensor, values: Tensor, paging: Paging) -> None:
    """Stores the batch's `keys` and `values`, each [tokens, kv_heads, head_dim]."""
    cache.keys[layer].flatten(0, 1).index_copy_(0, paging.slots, keys)
    cache.values[layer].flatten(0, 1).index_copy_(0, paging.slots, values)


def attend(cache: KVCache, layer: int, queries: Tensor, paging: Paging) -> Tensor:
    """Causal attention of `queries` [tokens, heads, head_dim] over what is stored; gives the same shape.

    One sequence at a time: on a CPU, that beats padding the batch to its longest context.
    """
    attended = torch.empty_like(queries)
    for read in paging.reads:
        attended[read.first : read.last] = _attend_one(cache, layer, queries[read.first : read.last], read)
    return attended


def _read(span: Span, first: int, block_size: int, dtype: torch.dtype, device: torch.device) -> _Read:
    num_queries = span.end - span.start
    num_blocks = -(-span.end // block_size)
    return _Read(
        first=first,
        last=first + num_queries,
        num_keys=span.end,
        blocks=torch.tensor(span.blocks[:num_blocks], device=device),
        mask=_mask(span, dtype, device) if span.start > 0 and num_queries > 1 else None,
        is_causal=span.start == 0 and num_queries > 1,
    )


def _mask(span: Span, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[queries, keys], 0 where a query may look and -inf where it may not."""
    mask = torch.full((span.end - span.start, span.end), float("-inf"), dtype=dtype, device=device)
    return mask.triu_(diagonal=span.start + 1)


def _attend_one(cache: KVCache, layer: int, queries: Tensor, read: _Read) -> Tensor:
    keys, values = (
        tensor[layer].index_select(0, read.blocks).flatten(0, 1)[: read.num_keys].transpose(0, 1)
        for tensor in (cache.keys, cache.values)
    )
    attended = scaled_dot_product_attention(
        queries.transpose(0, 1)[None],
        keys[None],
        values[None],
        attn_mask=read.mask,
        is_causal=read.is_causal,
        enable_gqa=queries.shape[1] != keys.shape[0],
    )
    return attended[0].transpose(0, 1)
