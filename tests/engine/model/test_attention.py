from random import Random

import pytest
import torch
from torch import Tensor

from engine.model.attention import Attend, CpuAttention, GatheredAttention, Paging
from engine.model.kv_cache import KVCache, Span
from engine.model.row_attention import RowAttention
from tests.engine.model.tiny_llama import tiny_config

CPU = torch.device("cpu")
BLOCK_SIZE = 4
LAYER = 1


def one_head_at_a_time(queries: Tensor, keys: Tensor, values: Tensor, start: int, window: int | None) -> Tensor:
    found = torch.empty_like(queries)
    group = queries.shape[1] // keys.shape[1]
    for row, query in enumerate(queries):
        last = start + row + 1
        seen = slice(max(0, last - window) if window else 0, last)
        for head in range(queries.shape[1]):
            scores = keys[seen, head // group] @ query[head] / queries.shape[2] ** 0.5
            found[row, head] = scores.softmax(0) @ values[seen, head // group]
    return found


@pytest.mark.parametrize("way", [CpuAttention, GatheredAttention])
@pytest.mark.parametrize("seed", range(12))
def test_paged_attention_of_a_mixed_batch_equals_attention_one_head_at_a_time(
    seed: int, way: type[CpuAttention | GatheredAttention]
) -> None:
    random = Random(seed)
    torch.manual_seed(seed)
    window = random.choice([None, 1, 5, 40])
    config = tiny_config(family="mistral", window=window)
    cache = KVCache.allocate(config, 200, BLOCK_SIZE, torch.float32, CPU)
    blocks = random.sample(range(200), 200)
    spans, expected, queries, fresh = [], [], [], []
    for _ in range(random.randint(1, 5)):
        end = random.choice([random.randint(1, 40), random.randint(100, 150)])
        start = random.choice([0, end - 1, random.randrange(end)])
        span = Span(start, end, [blocks.pop() for _ in range(-(-end // BLOCK_SIZE))])
        both = torch.randn(end, 2 * config.num_kv_heads, config.head_dim)
        if start:
            before = Paging.of([Span(0, start, span.blocks)], cache, config.num_heads, config.windows)
            before.attend(LAYER, torch.randn(start, config.num_heads, config.head_dim), both[:start])
        queries.append(torch.randn(end - start, config.num_heads, config.head_dim))
        keys, values = both[:, : config.num_kv_heads], both[:, config.num_kv_heads :]
        expected.append(one_head_at_a_time(queries[-1], keys, values, start, window))
        spans.append(span)
        fresh.append(both[start:])
    paging = Paging.of(spans, cache, config.num_heads, config.windows)
    paging.attend(LAYER, torch.cat(queries), torch.cat(fresh))
    reading: Attend = way.of(spans, cache, config.num_heads, window)
    found = reading(LAYER, torch.cat(queries), torch.cat(fresh))
    torch.testing.assert_close(found, torch.cat(expected), atol=1e-5, rtol=1e-5)
    assert cache.keys[0].abs().max() == 0


def test_a_long_and_a_short_context_do_not_wait_for_each_other() -> None:
    """They form groups of their own, and the answers stand where their queries stood."""
    config = tiny_config()
    cache = KVCache.allocate(config, 400, BLOCK_SIZE, torch.float32, CPU)
    cache.blocks.normal_()
    spans = [Span(2, 3, [0]), Span(1599, 1600, list(range(400))), Span(1, 2, [7])]
    reading = CpuAttention.of(spans, cache, config.num_heads, None)
    assert [group.scores.shape[2] for group in reading.in_place if isinstance(group, RowAttention)] == [1600, 3]
    queries = torch.randn(3, config.num_heads, config.head_dim)
    together = reading(LAYER, queries, torch.empty(0))
    for index, span in enumerate(spans):
        alone = CpuAttention.of([span], cache, config.num_heads, None)(LAYER, queries[[index]], torch.empty(0))
        torch.testing.assert_close(together[[index]], alone)
