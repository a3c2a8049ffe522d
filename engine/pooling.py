"""Makes one vector of the hidden states of a prompt, chunk by chunk.

Knows hidden states and chunks. Must not know the model or what a vector is for.
"""

from collections.abc import Sequence as List

import torch
from torch import Tensor

from engine.batch import Chunk
from engine.sampling import Pooled, Pooling, Result


def pool(hidden: Tensor, chunks: List[Chunk], results: list[Result]) -> None:
    """[tokens, hidden] states of all chunks in order: puts what each chunk with a pooling adds into its result."""
    first = 0
    for index, chunk in enumerate(chunks):
        pooling = chunk.sequence.request.pooling
        if pooling is not None:
            results[index] = _pooled(hidden[first : first + chunk.num_tokens], pooling)
        first += chunk.width


def _pooled(states: Tensor, pooling: Pooling) -> Pooled:
    vector = states[-1] if pooling is Pooling.LAST else states.sum(dim=0, dtype=torch.float32)
    return Pooled(vector.float().cpu().numpy().copy())
