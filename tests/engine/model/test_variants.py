"""Every family of the table beside `transformers`, on the same weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.model.attention import Paging
from engine.model.checkpoint import open_checkpoint
from engine.model.decoder import Decoder
from engine.model.kv_cache import KVCache, Span
from engine.model.loader import load
from engine.model.variants import VARIANTS

CPU = torch.device("cpu")
BLOCK_SIZE = 16
# What the order of additions in float32 may change in logits of up to 12; seen are differences up to 7e-5.
TOLERANCE = 2e-4

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 151,
    "max_position_embeddings": 4096,
    "initializer_range": 0.3,
    "attn_implementation": "eager",
}
LLAMA_3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama 2": ("llama", {"num_key_value_heads": 4}),
    "llama 3": ("llama", {"rope_parameters": LLAMA_3, "head_dim": 32}),
    "smollm2": (
        "llama",
        {"tie_word_embeddings": True, "hidden_size": 72, "num_attention_heads": 9, "num_key_value_heads": 3},
    ),
    "linear rope": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "mistral": ("mistral", {"sliding_window": 9}),
    "mistral without a window": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2 with a window": ("qwen2", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 24}),
}


def test_every_family_is_compared() -> None:
    assert {family for family, _ in MODELS.values()} == {variant.huggingface for variant in VARIANTS}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    theirs = random_model(*MODELS[name])
    theirs.save_pretrained(tmp_path, max_shard_size="200KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    ours = load(open_checkpoint(tmp_path), torch.float32, CPU)
    tokens = torch.randint(0, 151, (70,), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = theirs(tokens[None]).logits[0]
        found = logits_in_chunks(ours, tokens, [33, 34, 50, 51, 53, 70])
    assert expected.abs().max() > 3
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)


def random_model(family: str, options: dict[str, Any]) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(AutoConfig.for_model(family, **SIZES | options)).eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:  # Norms and biases, which start as ones and zeros.
            parameter.data += 0.3 * torch.randn(parameter.shape)
    return model


def logits_in_chunks(model: Decoder, tokens: Tensor, ends: list[int]) -> Tensor:
    """[tokens, vocabulary]"""
    num_blocks = -(-len(tokens) // BLOCK_SIZE)
    cache = KVCache.allocate(model.config, num_blocks, BLOCK_SIZE, torch.float32, CPU)
    table = list(reversed(range(num_blocks)))
    found, start = [], 0
    for end in ends:
        paging = Paging.of([Span(start, end, table)], cache, model.config.num_heads, model.config.windows)
        found.append(model.logits(model.hidden(tokens[start:end], torch.arange(start, end), paging)))
        start = end
    return torch.cat(found)
