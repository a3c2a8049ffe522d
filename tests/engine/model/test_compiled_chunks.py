from random import Random

import pytest
import torch
from torch import Tensor

from engine.model.attention import CpuAttention, GatheredAttention
from engine.model.compiled_chunks import CompiledChunks, chunks_kernel
from engine.model.kv_cache import KVCache, Span

BLOCK_SIZE = 16
NUM_BLOCKS = 80
LAYER = 1

pytestmark = pytest.mark.usefixtures("_threads")


def cache_of(num_kv_heads: int, size: int, block_size: int = BLOCK_SIZE) -> KVCache:
    torch.manual_seed(size)
    return KVCache(torch.randn(NUM_BLOCKS, 2, 2, num_kv_heads, block_size, size))


def compiled_or_skip(cache: KVCache, num_heads: int) -> None:
    if chunks_kernel(cache, num_heads) is None:
        pytest.skip("there is no C compiler, or no AVX-512")


def spans_of(ranges: list[tuple[int, int]]) -> list[Span]:
    """Each over blocks of its own, which do not lie in order."""
    free = Random(len(ranges)).sample(range(NUM_BLOCKS), NUM_BLOCKS)
    return [Span(start, end, [free.pop() for _ in range(-(-end // BLOCK_SIZE))]) for start, end in ranges]


def fresh_of(cache: KVCache, spans: list[Span]) -> Tensor:
    """[tokens, 2 * kv_heads, head_dim]: what the cache has of the spans' own tokens."""
    places = [(span.blocks[at // BLOCK_SIZE], at % BLOCK_SIZE) for span in spans for at in range(span.start, span.end)]
    return torch.stack([cache.blocks[block, LAYER, :, :, offset].flatten(0, 1) for block, offset in places])


@pytest.mark.parametrize("window", [None, 5, 70])
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "size"), [(9, 3, 64), (4, 4, 128), (4, 2, 80), (16, 1, 16), (7, 1, 256)]
)
def test_reading_in_place_finds_what_reading_copies_finds(
    num_heads: int, num_kv_heads: int, size: int, window: int | None
) -> None:
    """To float32's precision: the two add in another order."""
    cache = cache_of(num_kv_heads, size)
    compiled_or_skip(cache, num_heads)
    spans = spans_of([(0, 4), (0, 33), (16, 21), (63, 64), (70, 199), (3, 64), (250, 256)])
    num_tokens = sum(span.num_queries for span in spans)
    queries = torch.randn(num_tokens, num_heads + 2 * num_kv_heads, size)[:, :num_heads]
    reading = CpuAttention.of(spans, cache, num_heads, window)
    assert CompiledChunks in map(type, reading.in_place)
    assert reading.copied == ()
    fresh = fresh_of(cache, spans)
    found = reading(LAYER, queries, fresh)
    expected = GatheredAttention.of(spans, cache, num_heads, window)(LAYER, queries, fresh)
    torch.testing.assert_close(found, expected, atol=3e-6, rtol=1e-5)


def test_what_lies_beyond_a_sequence_or_before_its_window_is_not_seen() -> None:
    cache = cache_of(1, 32)
    compiled_or_skip(cache, 2)
    queries, span = torch.randn(10, 2, 32), [Span(40, 50, [5, 6, 7, 8])]
    before = CpuAttention.of(span, cache, 2, 20)(0, queries, queries)
    cache.blocks[5] = cache.blocks[6, :, :, :, :5] = cache.blocks[8, :, :, :, 2:] = float("nan")
    assert CpuAttention.of(span, cache, 2, 20)(0, queries, queries).equal(before)


def test_scores_that_are_far_apart_neither_overflow_nor_vanish() -> None:
    cache = cache_of(1, 16)
    compiled_or_skip(cache, 1)
    cache.blocks[:, :, 0] *= 1000
    queries, span = torch.full((6, 1, 16), 10.0), [Span(90, 96, [3, 1, 2, 0, 5, 4])]
    found = CpuAttention.of(span, cache, 1, None)(0, queries, queries)
    torch.testing.assert_close(found, GatheredAttention.of(span, cache, 1, None)(0, queries, queries))


def test_a_query_finds_the_same_whatever_is_computed_with_it() -> None:
    cache = cache_of(2, 64)
    compiled_or_skip(cache, 6)
    (whole,) = spans_of([(0, 150)])
    queries = torch.randn(150, 6, 64)
    together = CpuAttention.of([whole], cache, 6, None)(0, queries, queries)
    for start, end in ((0, 4), (4, 37), (37, 128), (128, 150)):
        part = CpuAttention.of([Span(start, end, whole.blocks)], cache, 6, None)(0, queries[start:end], queries)
        assert part.equal(together[start:end])


@pytest.mark.parametrize(("num_heads", "size", "block_size"), [(1, 24, 16), (1, 16, 8), (97, 16, 16), (1, 272, 16)])
def test_other_sizes_are_left_to_pytorch(num_heads: int, size: int, block_size: int) -> None:
    cache = cache_of(1, size, block_size)
    assert chunks_kernel(cache, num_heads) is None
    span, queries = [Span(19, 30, list(range(20)))], torch.randn(11, num_heads, size)
    found = CpuAttention.of(span, cache, num_heads, None)(0, queries, queries)
    expected = GatheredAttention.of(span, cache, num_heads, None)(0, queries, queries)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
