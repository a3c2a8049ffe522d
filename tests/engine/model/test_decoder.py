import pytest
import torch
from torch import Tensor

from engine.model.attention import Paging
from engine.model.config import ModelConfig
from engine.model.decoder import PROJECTIONS, Decoder, Deltas
from engine.model.kv_cache import KVCache, Span
from tests.engine.model.tiny_llama import dense_logits, tiny_config, tiny_llama, tiny_weights

CPU = torch.device("cpu")
BLOCK_SIZE = 4
TOKENS = [5, 90, 17, 4, 33, 8, 2, 61, 70]


def logits(
    model: Decoder, cache: KVCache, tokens: list[int], spans: list[Span], deltas: Deltas | None = None
) -> Tensor:
    positions = [position for span in spans for position in range(span.start, span.end)]
    paging = Paging.of(spans, cache, model.config.num_heads, model.config.windows)
    return model.logits(model.hidden(torch.tensor(tokens), torch.tensor(positions), paging, deltas))


def cache_for(config: ModelConfig) -> KVCache:
    return KVCache.allocate(config, 32, BLOCK_SIZE, torch.float32, CPU)


CONFIGS = [
    *(tiny_config(tie_embeddings=tied, num_kv_heads=heads) for tied in (True, False) for heads in (1, 2, 4)),
    tiny_config(family="mistral", window=3),
    tiny_config(family="qwen2"),
    tiny_config(family="qwen3", tie_embeddings=False),
]


@pytest.mark.parametrize("config", CONFIGS)
def test_logits_equal_the_dense_arithmetic(config: ModelConfig) -> None:
    found = logits(tiny_llama(config), cache_for(config), TOKENS, [Span(0, 9, [7, 3, 11])])
    torch.testing.assert_close(found, dense_logits(config, tiny_weights(config), TOKENS), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("window", [None, 1, 5])
def test_chunks_of_several_sequences_in_one_batch_equal_the_dense_arithmetic(window: int | None) -> None:
    config = tiny_config(family="mistral", window=window)
    model, cache = tiny_llama(config), cache_for(config)
    first, second = list(range(10, 23)), list(range(40, 46))
    blocks = [[9, 2, 5, 0], [31, 1]]
    logits(model, cache, first[:7] + second[:1], [Span(0, 7, blocks[0]), Span(0, 1, blocks[1])])
    found = logits(model, cache, first[7:] + second[1:], [Span(7, 13, blocks[0]), Span(1, 6, blocks[1])])
    last = logits(model, cache, [23, 46], [Span(13, 14, blocks[0]), Span(6, 7, blocks[1])])
    weights = tiny_weights(config)
    one, other = (dense_logits(config, weights, tokens) for tokens in ([*first, 23], [*second, 46]))
    torch.testing.assert_close(found, torch.cat([one[7:13], other[1:6]]), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(last, torch.stack([one[13], other[6]]), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("wanted", [[], [4], [0, 8]])
def test_states_that_are_wanted_are_those_among_all(wanted: list[int]) -> None:
    config = tiny_config()
    model, cache = tiny_llama(config), cache_for(config)
    paging = Paging.of([Span(0, 9, [7, 3, 11])], cache, config.num_heads, config.windows)
    tokens, positions, indices = torch.tensor(TOKENS), torch.arange(9), torch.tensor(wanted, dtype=torch.long)
    every = model.hidden(tokens, positions, paging)
    kept = cache.blocks.clone()
    cache.blocks.zero_()
    torch.testing.assert_close(model.hidden(tokens, positions, paging, wanted=indices), every[indices])
    assert cache.blocks.equal(kept)
    with_adapters = model.hidden(tokens, positions, paging, lambda *_: None, indices)
    torch.testing.assert_close(with_adapters, every[indices])


def test_bfloat16_stays_near_float32() -> None:
    config = tiny_config()
    found = logits(tiny_llama(config, dtype=torch.bfloat16), cache_for(config), TOKENS, [Span(0, 9, [0, 1, 2])])
    assert found.dtype == torch.float32
    expected = dense_logits(config, tiny_weights(config), TOKENS)
    assert torch.nn.functional.cosine_similarity(found, expected).min() > 0.99


def test_deltas_see_the_inputs_of_each_projection_and_change_its_outputs() -> None:
    config = tiny_config(family="qwen2")
    added = {
        (layer, name): torch.randn(config.hidden_size, dtype=torch.float32)
        for layer in range(config.num_layers)
        for name in PROJECTIONS
    }
    weights = tiny_weights(config)
    suffixes = dict.fromkeys(PROJECTIONS[:4], "self_attn") | dict.fromkeys(PROJECTIONS[4:], "mlp")
    changes: dict[tuple[int, str], Tensor] = {}
    for layer, name in added:
        place = f"model.layers.{layer}.{suffixes[name]}.{name}.weight"
        changes[layer, name] = 0.1 * torch.randn(weights[place].shape)
        weights[place] = weights[place] + changes[layer, name]

    def deltas(outputs: Tensor, inputs: Tensor, layer: int, projection: str) -> None:
        outputs.add_(inputs @ changes[layer, projection].T)

    model, cache = tiny_llama(config), cache_for(config)
    # A single token is computed among rows that stand for none.
    found = [
        logits(model, cache, TOKENS[:8], [Span(0, 8, [7, 3, 11])], deltas),
        logits(model, cache, TOKENS[8:], [Span(8, 9, [7, 3, 11])], deltas),
    ]
    torch.testing.assert_close(torch.cat(found), dense_logits(config, weights, TOKENS), atol=1e-4, rtol=1e-4)
