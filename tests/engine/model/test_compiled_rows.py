from random import Random

import pytest
import torch

from engine.model.attention import CpuAttention, GatheredAttention
from engine.model.compiled_rows import CompiledRows, rows_kernel
from engine.model.kv_cache import KVCache, Span

BLOCK_SIZE = 16
NUM_BLOCKS = 80


def cache_of(num_kv_heads: int, size: int, block_size: int = BLOCK_SIZE) -> KVCache:
    torch.manual_seed(size)
    return KVCache(torch.randn(NUM_BLOCKS, 2, 2, num_kv_heads, block_size, size))


def compiled_or_skip(cache: KVCache, num_heads: int) -> None:
    if rows_kernel(cache, num_heads) is None:
        pytest.skip("there is no C compiler, or no AVX-512")


@pytest.mark.parametrize("window", [None, 3, 40])
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "size"), [(9, 3, 64), (8, 8, 128), (4, 2, 80), (16, 1, 16)])
def test_reading_in_place_finds_what_reading_copies_finds(
    num_heads: int, num_kv_heads: int, size: int, window: int | None
) -> None:
    random, cache = Random(size), cache_of(num_kv_heads, size)
    compiled_or_skip(cache, num_heads)
    free = random.sample(range(NUM_BLOCKS), NUM_BLOCKS)
    spans = []
    for end in (1, 16, 17, 100, 203, 256):
        blocks = [free.pop() for _ in range(-(-end // BLOCK_SIZE))]
        spans.append(Span(max(0, end - random.randint(1, 3)), end, blocks))
    num_tokens = sum(span.num_queries for span in spans)
    queries = torch.randn(num_tokens, num_heads + 2 * num_kv_heads, size)[:, :num_heads]
    reading = CpuAttention.of(spans, cache, num_heads, window)
    assert [type(part) for part in reading.in_place] == [CompiledRows]
    # Nothing here begins its sequence with a chunk, so that what is fresh is read in the cache.
    found = reading(1, queries, torch.empty(0))
    expected = GatheredAttention.of(spans, cache, num_heads, window)
    for index, chunk in enumerate(expected.chunks):
        if chunk.panels is not None:
            one = torch.empty_like(queries)
            chunk.attend(1, queries, torch.empty(0), one)
            rows = slice(chunk.first, chunk.last)
            torch.testing.assert_close(found[rows], one[rows], atol=2e-6, rtol=1e-5, msg=f"span {index}")


def test_what_lies_in_a_block_beyond_a_sequence_is_not_seen() -> None:
    cache = cache_of(1, 32)
    compiled_or_skip(cache, 2)
    queries, span = torch.randn(1, 2, 32), [Span(19, 20, [5, 6])]
    before = CpuAttention.of(span, cache, 2, None)(0, queries, queries)
    cache.blocks[6, :, :, :, 4:] = float("nan")
    assert CpuAttention.of(span, cache, 2, None)(0, queries, queries).equal(before)


def test_scores_that_are_far_apart_neither_overflow_nor_vanish() -> None:
    cache = cache_of(1, 16)
    compiled_or_skip(cache, 1)
    cache.blocks[:, :, 0] *= 1000
    queries, span = torch.full((1, 1, 16), 10.0), [Span(63, 64, [3, 1, 2, 0])]
    found = CpuAttention.of(span, cache, 1, None)(0, queries, queries)
    torch.testing.assert_close(found, GatheredAttention.of(span, cache, 1, None)(0, queries, queries))


@pytest.mark.parametrize(("num_heads", "size", "block_size"), [(1, 24, 16), (1, 16, 8), (17, 16, 16), (1, 272, 16)])
def test_other_sizes_are_left_to_pytorch(num_heads: int, size: int, block_size: int) -> None:
    cache = cache_of(1, size, block_size)
    assert rows_kernel(cache, num_heads) is None
    span, queries = [Span(19, 20, list(range(20)))], torch.randn(1, num_heads, size)
    found = CpuAttention.of(span, cache, num_heads, None)(0, queries, queries)
    expected = GatheredAttention.of(span, cache, num_heads, None)(0, queries, queries)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
