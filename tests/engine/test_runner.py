"""Whatever the batching, chunking, caching and preemption: the same greedy tokens as one request alone."""

import subprocess
import sys
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from engine.blocks import BlockPool
from engine.core import EngineCore
from engine.fetch import fetch
from engine.model.checkpoint import open_checkpoint
from engine.model.export import export
from engine.model.kv_cache import KVCache
from engine.model.loader import load
from engine.model.placement import Quantized
from engine.runner import Runner
from engine.scheduler import Scheduler
from engine.sequence import Request
from engine.tokenizer import Tokenizer
from tests.engine.model.tiny_llama import dense_greedy, tiny_config, tiny_llama, tiny_weights
from tests.engine.prompts import prompts_that_differ
from tests.engine.requests import BLOCK_SIZE, core, request

CONFIG = tiny_config()
WEIGHTS = tiny_weights(CONFIG)


@cache
def alone(prompt: tuple[int, ...], num_tokens: int) -> list[int]:
    return dense_greedy(CONFIG, WEIGHTS, prompt, num_tokens)


def runner_for(engine: EngineCore) -> Runner:
    num_blocks = engine.scheduler.pool.num_blocks
    kv = KVCache.allocate(CONFIG, num_blocks, BLOCK_SIZE, torch.float32, torch.device("cpu"))
    return Runner(tiny_llama(CONFIG), kv)


def step(engine: EngineCore, runner: Runner, outputs: dict[str, list[int]]) -> None:
    batch = engine.plan()
    for output in engine.commit(batch, runner.run(batch), 0.0):
        outputs.setdefault(output.request_id, []).extend(output.token_ids)


def generate(engine: EngineCore, requests: list[Request]) -> list[list[int]]:
    """All at once."""
    runner, outputs = runner_for(engine), dict[str, list[int]]()
    for asked in requests:
        engine.add(asked)
    while engine.has_work:
        step(engine, runner, outputs)
    return [outputs[asked.id] for asked in requests]


def prompt(random: Random, num_tokens: int) -> tuple[int, ...]:
    return tuple(random.randrange(CONFIG.vocab_size) for _ in range(num_tokens))


def test_one_request_alone() -> None:
    asked = request(prompt(Random(0), 21), max_tokens=20)
    assert generate(core(), [asked]) == [alone(asked.prompt, 20)]


def test_a_batch_of_different_lengths() -> None:
    requests = [request(prompt(Random(length), length), max_tokens=12) for length in (1, 3, 4, 5, 16, 17)]
    assert generate(core(), requests) == [alone(asked.prompt, 12) for asked in requests]


@pytest.mark.parametrize("budget", [1, 3, 4, 7])
def test_a_prompt_in_chunks(budget: int) -> None:
    asked = request(prompt(Random(1), 30), max_tokens=8)
    engine = core(max_num_seqs=1, max_num_batched_tokens=budget)
    assert generate(engine, [asked]) == [alone(asked.prompt, 8)]


def test_a_prefix_hit() -> None:
    shared = prompt(Random(2), 13)
    engine, outputs = core(), dict[str, list[int]]()
    runner = runner_for(engine)
    for tail in ((), (5,), (6, 7), ()):
        asked = request(shared + tail, max_tokens=9)
        engine.add(asked)
        while engine.has_work:
            step(engine, runner, outputs)
        assert outputs[asked.id] == alone(asked.prompt, 9)
    assert engine.scheduler.num_hit_tokens == 3 * 12


def test_a_preempted_request() -> None:
    requests = [request(prompt(Random(seed), 9), max_tokens=20) for seed in range(3)]
    engine = core(num_blocks=14)
    assert generate(engine, requests) == [alone(asked.prompt, 20) for asked in requests]
    assert engine.scheduler.num_preemptions > 0


def test_a_seeded_draw_is_the_same_alone_and_in_a_batch() -> None:
    def drawn(seed: int) -> Request:
        return request(prompt(Random(seed), 9), max_tokens=16, temperature=1.0, top_p=0.9, seed=seed)

    together = generate(core(num_blocks=20), [drawn(seed) for seed in range(4)])
    assert together == [generate(core(), [drawn(seed)])[0] for seed in range(4)]
    assert len({tuple(tokens) for tokens in together}) == 4


def test_tokens_of_unfinished_prompts_are_not_sampled() -> None:
    engine = core(max_num_seqs=2, max_num_batched_tokens=8)
    engine.add(request(prompt(Random(3), 5)))
    engine.add(request(prompt(Random(4), 9)))
    tokens = runner_for(engine).run(engine.plan())
    assert tokens[0] is not None
    assert tokens[1] is None


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_greedy_tokens_of_the_real_model_equal_those_of_transformers_for_all_prompts_at_once(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    path, num_tokens = fetch("smollm2-135m-instruct"), 12
    prompts = prompts_that_differ(Tokenizer.load(path))
    assert len({tuple(prompt) for prompt in prompts}) >= 50
    assert (min(map(len, prompts)), max(map(len, prompts))) == (1, 4000)
    export(path, tmp_path)
    auto: Any = AutoModelForCausalLM
    theirs = auto.from_pretrained(tmp_path, dtype=torch.float32).eval()
    options = {"max_new_tokens": num_tokens, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    expected = []
    for ids in map(torch.tensor, prompts):
        made = theirs.generate(ids[None], attention_mask=torch.ones_like(ids[None]), **options)
        expected.append(made[0, len(ids) :].tolist())
    pool = BlockPool(1000, 16)
    engine = EngineCore(Scheduler(pool, max_num_seqs=24, max_num_batched_tokens=200))
    checkpoint = open_checkpoint(path)
    kv = KVCache.allocate(checkpoint.config, pool.num_blocks, pool.block_size, torch.float32, torch.device("cpu"))
    # As it is served by default: in the bits that the file stores.
    model = load(checkpoint, torch.float32, torch.device("cpu"), Quantized.KEEP)
    runner, outputs = Runner(model, kv), dict[str, list[int]]()
    asked = [request(tuple(prompt), max_tokens=num_tokens) for prompt in prompts]
    for one in asked:
        engine.add(one)
    while engine.has_work:
        step(engine, runner, outputs)
    assert [outputs[one.id] for one in asked] == expected
    assert engine.scheduler.num_hit_tokens > 0


def anonymous_mib() -> float:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) / 1024


@pytest.mark.slow
def test_memory_does_not_grow_over_a_thousand_requests() -> None:
    random = Random(5)
    engine = core(num_blocks=200, max_num_seqs=8, max_num_batched_tokens=64)
    runner, outputs = runner_for(engine), dict[str, list[int]]()

    def serve(num_requests: int) -> None:
        for _ in range(num_requests // 8):
            for _ in range(8):
                engine.add(request(prompt(random, random.randint(1, 60)), max_tokens=random.randint(1, 12)))
            while engine.has_work:
                step(engine, runner, outputs)
            outputs.clear()

    # PyTorch keeps a kernel for each number of rows that it has seen.
    for num_rows in range(1, 65):
        engine.add(request(prompt(random, num_rows), max_tokens=1, salt=f"{num_rows}"))
        while engine.has_work:
            step(engine, runner, outputs)
    serve(200)
    before = anonymous_mib()
    serve(1000)
    assert anonymous_mib() - before < 4


# In a process of its own: what other tests left behind is given back while the weights are read.
LOADING = """
import sys, torch
from pathlib import Path
from engine.model.checkpoint import open_checkpoint
from engine.model.loader import load
from engine.model.placement import Quantized, quantized_named
from tests.engine.test_runner import anonymous_mib
path, dtype, quantized = sys.argv[1:]
asked = quantized_named(quantized, getattr(torch, dtype), torch.device("cpu"))
checkpoint, before = open_checkpoint(Path(path)), anonymous_mib()
model = load(checkpoint, getattr(torch, dtype), torch.device("cpu"), asked)
print(asked is Quantized.KEEP, anonymous_mib() - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "quantized"), [("bfloat16", "widen"), ("float32", "auto")])
def test_weights_are_in_memory_once(dtype: str, quantized: str) -> None:
    path = fetch("smollm2-135m-instruct")
    command = [sys.executable, "-c", LOADING, str(path), dtype, quantized]
    is_kept, took_mib = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    num_bytes = 2 * 134_515_008 if dtype == "bfloat16" else 4 * 134_515_008
    if is_kept == "True":  # Five bits a weight with the scales, nine in the head.
        num_bytes = 106_203_456 * 5 // 8 + 28_311_552 * 9 // 8
    assert 0.95 * num_bytes / 2**20 < float(took_mib) < 1.15 * num_bytes / 2**20
