"""A name for what a model's KV means: equal for two engines only if one can read what the other computed.

Knows a checkpoint's config and a few of its weights. Must not know who compares.
"""

from collections.abc import Iterable

import torch
from torch import Tensor
from xxhash import xxh3_64

from engine.model.checkpoint import Checkpoint
from engine.model.weights import EMBEDDINGS, NORM

# Enough of them that no training leaves all as they were.
_NUM_EMBEDDINGS = 64


def fingerprint(checkpoint: Checkpoint, kv_dtype: torch.dtype, block_size: int) -> str:
    """The same config, weights, number format and block size give the same name, in every process."""
    config = checkpoint.config
    rows = torch.arange(min(_NUM_EMBEDDINGS, config.vocab_size))
    digest = _digest(repr(config), [checkpoint.read(NORM), checkpoint.rows(EMBEDDINGS, rows)])
    return f"{config.variant.huggingface} {digest:016x} {str(kv_dtype).removeprefix('torch.')} blocks of {block_size}"


def _digest(text: str, tensors: Iterable[Tensor]) -> int:
    digest = xxh3_64(text.encode())
    for tensor in tensors:
        digest.update(tensor.float().contiguous().numpy().data)
    return digest.intdigest()
