from dataclasses import replace

import pytest
import torch

from engine.model.coded import Coded, Codes, FourBit
from engine.model.linear import BySize
from engine.model.loader import load
from engine.model.placement import Quantized
from tests.engine.model.tiny_llama import in_memory, tiny_config, tiny_llama, tiny_weights

CPU = torch.device("cpu")


def test_each_layer_is_told_of_as_it_comes() -> None:
    config, told = tiny_config(), list[tuple[int, int]]()
    checkpoint = in_memory(config, tiny_weights(config))
    load(checkpoint, torch.float32, CPU, progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 2), (2, 2)]


def test_a_model_computes_in_the_dtype_that_was_asked_for() -> None:
    model = tiny_llama(dtype=torch.bfloat16)
    assert model.dtype is torch.bfloat16
    assert model.layers[1].qkv(torch.ones(1, 48)).dtype is torch.bfloat16


def test_embeddings_are_read_from_the_checkpoint_even_where_the_head_is_the_same_matrix() -> None:
    config = tiny_config()
    weights = tiny_weights(config)
    found = tiny_llama(config, weights).embedding(torch.tensor([3, 96, 3]))
    assert found.equal(weights["model.embed_tokens.weight"][[3, 96, 3]])


@pytest.mark.parametrize(("quantized", "kinds"), [(Quantized.SMALL, BySize), (Quantized.KEEP, (Coded, FourBit))])
def test_only_what_is_stored_with_few_bits_stays_so(quantized: Quantized, kinds: type) -> None:
    """The fused matrix of gate and up, of which only one is stored so, is widened."""
    config = replace(tiny_config(), hidden_size=64, intermediate_size=96, num_heads=8)
    checkpoint = in_memory(config, tiny_weights(config))

    def stored(name: str) -> Codes | None:
        if not name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight", "down_proj.weight", "up_proj.weight")):
            return None
        num_rows, size = checkpoint.read(name).shape
        groups = torch.zeros(num_rows, size // 32)
        return Codes(4, torch.zeros(num_rows, size, dtype=torch.uint8), groups, groups)

    layer = load(replace(checkpoint, codes=stored), torch.bfloat16, CPU, quantized).layers[0]
    assert isinstance(layer.qkv, kinds)
    assert isinstance(layer.down, kinds)
    assert not isinstance(layer.gate_up, (BySize, Coded, FourBit))
    assert layer.qkv(torch.ones(1, 64)).shape == (1, 96)
