"""`python -m engine.model.attention_cost`: microseconds a layer to read contexts of single tokens on a CPU, two ways.

Knows the ways and a clock. Must not know models' weights. In place is what the engine does; over copies is PyTorch's
fused attention on contexts that were copied together first. CPU time of one thread, the best of several rounds.
"""

from collections.abc import Sequence as List
from dataclasses import dataclass
from time import process_time

import torch

from engine.model.attention import Attend, CpuAttention, GatheredAttention
from engine.model.kv_cache import KVCache, Span

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Shape:
    num_layers: int = 8
    num_heads: int = 9
    num_kv_heads: int = 3
    head_dim: int = 64


def costs_us(batch: int, context: int, shape: Shape, num_rounds: int) -> tuple[float, float]:
    """In place, and over copies."""
    num_blocks = -(-context // BLOCK_SIZE)
    size = (batch * num_blocks, shape.num_layers, 2, shape.num_kv_heads, BLOCK_SIZE, shape.head_dim)
    cache = KVCache(torch.randn(size))
    # Blocks of one sequence do not lie together.
    spans = [Span(context - 1, context, list(range(first, batch * num_blocks, batch))) for first in range(batch)]
    queries = torch.randn(batch, shape.num_heads, shape.head_dim)
    ways: List[Attend] = (
        CpuAttention.of(spans, cache, shape.num_heads, None),
        GatheredAttention.of(spans, cache, shape.num_heads, None),
    )
    in_place, over_copies = (_best_us(way, queries, shape.num_layers, num_rounds) for way in ways)
    return in_place, over_copies


def _best_us(way: Attend, queries: torch.Tensor, num_layers: int, num_rounds: int) -> float:
    took_s = []
    for _ in range(num_rounds):
        started = process_time()
        for layer in range(num_layers):
            way(layer, queries, queries)
        took_s.append(process_time() - started)
    return min(took_s) / num_layers * 1e6


@torch.inference_mode()
def main() -> None:
    torch.set_num_threads(1)
    for batch, context in ((1, 256), (1, 1024), (8, 256), (32, 256), (32, 1024)):
        in_place, over_copies = costs_us(batch, context, Shape(), num_rounds=5)
        print(f"batch {batch}, context {context}: {in_place:.0f} us in place, {over_copies:.0f} us over copies")


if __name__ == "__main__":
    main()
