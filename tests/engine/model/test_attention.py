from random import Random

import pytest
import torch
from torch import Tensor

from engine.model.attention import KVCache, Paging, Span, attend, bytes_per_block, write
from tests.engine.model.tiny_llama import tiny_config

CPU = torch.device("cpu")
BLOCK_SIZE = 4


def one_head_at_a_time(queries: Tensor, keys: Tensor, values: Tensor, start: int) -> Tensor:
    attended = torch.empty_like(queries)
    group = queries.shape[1] // keys.shape[1]
    for row, query in enumerate(queries):
        for head in range(queries.shape[1]):
            seen = slice(0, start + row + 1)
            scores = keys[seen, head // group] @ query[head] / queries.shape[2] ** 0.5
            attended[row, head] = scores.softmax(0) @ values[seen, head // group]
    return attended


@pytest.mark.parametrize("seed", range(10))
def test_paged_attention_of_a_mixed_batch_equals_attention_one_head_at_a_time(seed: int) -> None:
    random = Random(seed)
    config = tiny_config()
    cache = KVCache.allocate(config, 64, BLOCK_SIZE, torch.float32, CPU)
    blocks = random.sample(range(64), 64)
    spans, expected, queries = [], [], []
    for _ in range(random.randint(1, 5)):
        end = random.randint(1, 20)
        start = random.choice([0, end - 1, random.randrange(end)])
        table = [blocks.pop() for _ in range(-(-end // BLOCK_SIZE))]
        keys, values = torch.randn(2, end, config.num_kv_heads, config.head_dim)
        write(cache, 1, keys, values, Paging.of([Span(0, end, table)], BLOCK_SIZE, torch.float32, CPU))
        queries.append(torch.randn(end - start, config.num_heads, config.head_dim))
        expected.append(one_head_at_a_time(queries[-1], keys, values, start))
        spans.append(Span(start, end, table))
    attended = attend(cache, 1, torch.cat(queries), Paging.of(spans, BLOCK_SIZE, torch.float32, CPU))
    torch.testing.assert_close(attended, torch.cat(expected), atol=1e-5, rtol=1e-5)
    assert cache.keys[0].abs().max() == 0


def test_a_blocks_bytes_are_those_of_its_share_of_the_cache() -> None:
    config = tiny_config()
    cache = KVCache.allocate(config, 10, BLOCK_SIZE, torch.bfloat16, CPU)
    assert cache.keys.nbytes + cache.values.nbytes == 10 * bytes_per_block(config, BLOCK_SIZE, torch.bfloat16)


def test_a_cache_without_room_says_how_much_it_wanted() -> None:
    with pytest.raises(MemoryError, match=r"cpu has no room for 953674\.3 GiB of KV cache"):
        KVCache.allocate(tiny_config(), 10**12, BLOCK_SIZE, torch.float32, CPU)
