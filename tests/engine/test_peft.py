"""Adapters as PEFT itself saves them: the engine says what PEFT's merged model says, whatever else is in the batch."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.adapters import Adapter
from engine.lora import read_lora
from engine.model.checkpoint import open_checkpoint
from engine.model.kv_cache import KVCache
from engine.model.loader import load
from engine.model.low_rank import Slots
from engine.model.weights import weight_shapes
from engine.runner import Runner
from tests.engine.requests import BLOCK_SIZE, core, request

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

CPU = torch.device("cpu")
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
OPTIONS: dict[str, dict[str, Any]] = {
    "all": {"r": 8, "lora_alpha": 16, "target_modules": ALL},
    "attention": {"r": 64, "lora_alpha": 32, "target_modules": ["q_proj", "v_proj"], "use_rslora": True},
    "patterns": {
        "r": 4,
        "lora_alpha": 4,
        "target_modules": ["down_proj", "o_proj", "k_proj"],
        "rank_pattern": {"down_proj": 2},
        "alpha_pattern": {"layers.1.self_attn.k_proj": 9},
    },
}
PROMPTS = [tuple(range(first, first + length)) for first, length in ((1, 3), (20, 17), (40, 40))]
NUM_TOKENS = 24


def base(folder: Path) -> Any:
    transformers: Any = import_module("transformers")
    torch.manual_seed(5)
    sizes = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 97}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12, "max_position_embeddings": 256}
    config = transformers.LlamaConfig(**sizes, **heads, initializer_range=0.2, eos_token_id=None, bos_token_id=None)
    model = transformers.LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    return model


def merged(folder: Path, name: str) -> Any:
    """PEFT's own merge. Saves the adapter before, its B matrices random."""
    peft: Any = import_module("peft")
    model = peft.get_peft_model(base(folder / "base"), peft.LoraConfig(task_type="CAUSAL_LM", **OPTIONS[name]))
    random = torch.Generator().manual_seed(len(name))
    for path, weight in model.named_parameters():
        if "lora_B" in path:
            weight.data.copy_(torch.randn(weight.shape, generator=random) * 0.3)
    model.save_pretrained(folder / name)
    return model.merge_and_unload().eval()


def said(model: Any, prompt: tuple[int, ...]) -> list[int]:
    asked = torch.tensor([prompt])
    with torch.inference_mode():
        answer = model.generate(
            asked, attention_mask=torch.ones_like(asked), max_new_tokens=NUM_TOKENS, do_sample=False
        )
    found: list[int] = answer[0, len(prompt) :].tolist()
    return found


def test_each_request_of_a_mixed_batch_gets_what_pefts_merged_model_says(tmp_path: Path) -> None:
    expected: dict[tuple[str | None, tuple[int, ...]], list[int]] = {}
    models: dict[str | None, Any] = {
        None: base(tmp_path / "base"),
        **{name: merged(tmp_path, name) for name in OPTIONS},
    }
    for name, model in models.items():
        expected |= {(name, prompt): said(model, prompt) for prompt in PROMPTS}
    assert len({tuple(tokens) for tokens in expected.values()}) > len(PROMPTS) * len(OPTIONS)
    assert generate(tmp_path, list(expected)) == expected


def generate(
    folder: Path, wanted: list[tuple[str | None, tuple[int, ...]]]
) -> dict[tuple[str | None, tuple[int, ...]], list[int]]:
    """All at once, with a slot less than there are adapters."""
    checkpoint = open_checkpoint(folder / "base")
    engine = core(num_blocks=200, max_num_seqs=8, max_num_batched_tokens=50, num_slots=len(OPTIONS) - 1)
    slots = Slots(torch.float32, CPU)
    for name in OPTIONS:
        found = read_lora(folder / name, weight_shapes(checkpoint.config), max_rank=64)
        adapter = Adapter(name, name, found.rank, found.digest, engine.scheduler.adapters.next_load())
        engine.scheduler.adapters.add(adapter)
        slots.keep(adapter, found.weights)
    cache = KVCache.allocate(checkpoint.config, 200, BLOCK_SIZE, torch.float32, CPU)
    runner = Runner(load(checkpoint, torch.float32, CPU), cache, None, slots)
    asked: dict[str, tuple[str | None, tuple[int, ...]]] = {}
    for key in wanted:
        one = request(key[1], adapter=key[0], max_tokens=NUM_TOKENS)
        asked[one.id] = key
        engine.add(one)
    answers: dict[tuple[str | None, tuple[int, ...]], list[int]] = {key: [] for key in wanted}
    while engine.has_work:
        batch = engine.plan()
        for output in engine.commit(batch, runner.run(batch), 0.0):
            answers[asked[output.request_id]] += output.token_ids
    return answers
