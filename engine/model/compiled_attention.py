"""What our functions for attention on a CPU have in common: the caches they are for, and how they are called.

Knows a KV cache's layout. Must not know which queries are asked for, or of which sequences.
"""

from ctypes import c_float, c_int, c_long, c_void_p
from typing import Any

import torch
from torch import Tensor

from engine.model.compiled import Function, compiled
from engine.model.kv_cache import KVCache

BLOCK = 16
_LANES, _MOST_SIZE = 16, 256
_PLACES = (c_void_p, c_long, c_void_p, c_long, c_void_p, c_void_p, c_long, c_void_p)
_SIZES = (c_long, c_long, c_long, c_float, c_int)


def attention_kernel(
    source: str, name: str, cache: KVCache, num_heads: int, most_sharing: int, more: tuple[Any, ...] = ()
) -> Function | None:
    """A function that takes `more` than all do. None where it cannot be had, or is not for these sizes."""
    size, sharing = cache.head_dim, num_heads // cache.num_kv_heads
    if cache.block_size != BLOCK or size % _LANES or size > _MOST_SIZE or sharing > most_sharing:
        return None
    if cache.blocks.dtype is not torch.float32:
        return None
    return compiled(source, name, (*_PLACES, *more, *_SIZES))


def attend(
    function: Function,
    cache: KVCache,
    layer: int,
    queries: Tensor,
    attended: Tensor,
    asked: Tensor,
    blocks: Tensor,
    *more: int,
) -> None:
    """Reads the rows of `queries` [tokens, heads, head_dim] that `asked` [n, 4] names, writes those of `attended`."""
    _, num_heads, size = queries.shape
    failed = function(
        cache.rows(layer).data_ptr(),
        cache.blocks.stride(0),
        queries.data_ptr(),
        queries.stride(0),
        attended.data_ptr(),
        asked.data_ptr(),
        len(asked),
        blocks.data_ptr(),
        *more,
        cache.num_kv_heads,
        num_heads // cache.num_kv_heads,
        size,
        size**-0.5,
        torch.get_num_threads(),
    )
    assert not failed, "the sizes were looked at before"
