import pytest
import torch
from torch import Tensor

from engine.model.attention import KVCache, Paging, Span
from engine.model.config import ModelConfig
from engine.model.llama import Llama
from tests.engine.model.tiny_llama import dense_logits, tiny_config, tiny_llama, tiny_weights

CPU = torch.device("cpu")
BLOCK_SIZE = 4


def logits(model: Llama, cache: KVCache, tokens: list[int], spans: list[Span]) -> Tensor:
    positions = [position for span in spans for position in range(span.start, span.end)]
    paging = Paging.of(spans, BLOCK_SIZE, model.dtype, CPU)
    return model.logits(model.hidden(torch.tensor(tokens), torch.tensor(positions), cache, paging))


def cache_for(config: ModelConfig, dtype: torch.dtype = torch.float32) -> KVCache:
    return KVCache.allocate(config, 32, BLOCK_SIZE, dtype, CPU)


@pytest.mark.parametrize("tie_embeddings", [True, False])
@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_logits_equal_the_dense_arithmetic(tie_embeddings: bool, num_kv_heads: int) -> None:
    config = tiny_config(tie_embeddings=tie_embeddings, num_kv_heads=num_kv_heads)
    tokens = [5, 90, 17, 4, 33, 8, 2, 61, 70]
    found = logits(tiny_llama(config), cache_for(config), tokens, [Span(0, 9, [7, 3, 11])])
    torch.testing.assert_close(found, dense_logits(config, tiny_weights(config), tokens), atol=1e-4, rtol=1e-4)


def test_chunks_of_several_sequences_in_one_batch_equal_the_dense_arithmetic() -> None:
    config = tiny_config()
    model, cache = tiny_llama(config), cache_for(config)
    first, second = list(range(10, 23)), list(range(40, 46))
    blocks = [[9, 2, 5, 0], [31, 1]]
    logits(model, cache, first[:7] + second[:1], [Span(0, 7, blocks[0]), Span(0, 1, blocks[1])])
    found = logits(model, cache, first[7:] + second[1:], [Span(7, 13, blocks[0]), Span(1, 6, blocks[1])])
    weights = tiny_weights(config)
    expected = [dense_logits(config, weights, first)[7:], dense_logits(config, weights, second)[1:]]
    torch.testing.assert_close(found, torch.cat(expected), atol=1e-4, rtol=1e-4)


def test_bfloat16_stays_near_float32() -> None:
    config = tiny_config()
    weights = {name: weight.bfloat16() for name, weight in tiny_weights(config).items()}
    model = Llama.of(config, weights, config.max_position)
    tokens = [5, 90, 17, 4, 33]
    found = logits(model, cache_for(config, torch.bfloat16), tokens, [Span(0, 5, [0, 1])])
    assert found.dtype == torch.float32
    expected = dense_logits(config, tiny_weights(config), tokens)
    assert torch.nn.functional.cosine_similarity(found, expected).min() > 0.99
