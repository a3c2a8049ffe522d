"""The GPU's kernel under Triton's interpreter, beside the CPU's attention. No GPU has run it."""

import os
from dataclasses import replace

import pytest
import torch

# Read when a kernel is declared.
os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton")

from engine.model.attention import Paging
from engine.model.kv_cache import KVCache, Span
from engine.model.triton_attention import TritonAttention
from tests.engine.model.tiny_llama import tiny_config

BLOCK_SIZE = 4
LAYER = 1


@pytest.mark.parametrize("window", [None, 1, 5, 70])
@pytest.mark.parametrize(("head_dim", "num_heads", "num_kv_heads"), [(8, 4, 4), (24, 9, 3), (64, 6, 1)])
def test_the_kernel_finds_what_the_cpu_finds(
    head_dim: int, num_heads: int, num_kv_heads: int, window: int | None
) -> None:
    torch.manual_seed(head_dim)
    config = replace(tiny_config(), head_dim=head_dim, num_heads=num_heads, num_kv_heads=num_kv_heads)
    cache = KVCache.allocate(config, 60, BLOCK_SIZE, torch.float32, torch.device("cpu"))
    cache.blocks.normal_()
    spans = [
        Span(3, 4, [7]),
        Span(0, 37, list(range(10, 20))),
        Span(99, 100, list(range(20, 45))),
        Span(30, 50, list(range(45, 58))),
    ]
    num_tokens = sum(span.num_queries for span in spans)
    queries = torch.randn(num_tokens, num_heads, head_dim)
    fresh = torch.randn(num_tokens, 2 * num_kv_heads, head_dim)
    expected = Paging.of(spans, cache, num_heads, (window, window)).attend(LAYER, queries, fresh)
    found = TritonAttention.of(spans, cache, num_heads, window)(LAYER, queries, fresh)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_single_tokens_and_prompts_are_cut_into_tiles_of_their_own() -> None:
    cache = KVCache.allocate(tiny_config(), 60, BLOCK_SIZE, torch.float32, torch.device("cpu"))
    decodes = TritonAttention.of([Span(7, 8, [1, 2]), Span(3, 4, [5])], cache, 4, None)
    assert decodes.tiles.tolist() == [[0, 7, 1, 0], [1, 3, 1, 2]]
    assert decodes.tables.tolist() == [1, 2, 5]
    mixed = TritonAttention.of([Span(7, 8, [1, 2]), Span(0, 40, list(range(10, 20)))], cache, 4, None)
    assert mixed.num_tile_queries == 32
    assert mixed.tiles.tolist() == [[0, 7, 1, 0], [1, 0, 32, 2], [33, 32, 8, 2]]
