import torch

from engine.model.loader import load
from tests.engine.model.tiny_llama import in_memory, tiny_config, tiny_llama, tiny_weights

CPU = torch.device("cpu")


def test_each_layer_is_told_of_as_it_comes() -> None:
    config, told = tiny_config(), list[tuple[int, int]]()
    load(in_memory(config, tiny_weights(config)), torch.float32, CPU, lambda done, total: told.append((done, total)))
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
