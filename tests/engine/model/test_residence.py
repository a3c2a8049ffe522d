"""What sleep takes away comes back, and the answers with it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from engine.app import Parts, build
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.model.checkpoint import open_checkpoint
from engine.model.residence import moved
from engine.model.weights import weight_shapes
from engine.runner import Runner
from tests.engine.lora_folder import write_lora
from tests.engine.requests import request
from tests.engine.server.tiny_service import write_tiny_model


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    path = write_tiny_model(tmp_path / "tiny.gguf")
    write_lora(tmp_path / "blue", weight_shapes(open_checkpoint(path).config))
    lora = (f"blue={tmp_path / 'blue'}",)
    return build(
        EngineConfig(model=str(path), device="cpu", kv_cache_gib=0.002, host_kv_gib=0.001, threads=1, lora=lora)
    )


def runner_of(parts: Parts) -> Runner:
    runner = cast(Any, parts.service.engine.run_batch).__self__
    assert isinstance(runner, Runner)
    return runner


def answer(parts: Parts, adapter: str | None) -> list[int]:
    core, tokens = parts.service.engine.core, list[int]()
    core.add(request(range(40), adapter=adapter, max_tokens=10))
    while core.has_work:
        batch = core.plan()
        for output in core.commit(batch, parts.service.engine.run_batch(batch), 0.0):
            tokens += output.token_ids
    return tokens


def sleep(parts: Parts, level: int) -> EngineCore:
    core = parts.service.engine.core
    core.sleep(level)
    parts.control.sleep_runner(level)
    return core


@pytest.mark.parametrize("level", [1, 2])
def test_awake_again_it_says_what_it_said_before_with_and_without_an_adapter(parts: Parts, level: int) -> None:
    before = [answer(parts, None), answer(parts, "blue")]
    core = sleep(parts, level)
    parts.control.wake_runner()
    core.wake()
    assert core.scheduler.pool.num_cached == 0
    assert [answer(parts, None), answer(parts, "blue")] == before
    assert before[0] != before[1]


@pytest.mark.parametrize(("level", "has_weights"), [(1, True), (2, False)])
def test_asleep_the_kv_is_gone_and_at_level_2_the_weights_too(parts: Parts, level: int, has_weights: bool) -> None:
    runner = runner_of(parts)
    assert len(runner.cache.blocks) > 0
    sleep(parts, level)
    sleep(parts, level)
    assert len(runner.cache.blocks) == 0
    assert runner.host_cache is None
    assert (runner.model is not None) == has_weights
    parts.control.wake_runner()
    assert len(runner.cache.blocks) == parts.service.engine.core.scheduler.pool.num_blocks
    assert runner.host_cache is not None


@dataclass(frozen=True)
class Part:
    name: str
    weight: torch.Tensor
    bias: torch.Tensor | None = None


@dataclass(frozen=True)
class Whole:
    parts: tuple[Part, ...]
    tied: torch.Tensor


def test_moving_takes_every_tensor_along_and_keeps_shared_ones_shared() -> None:
    weight, bias = torch.ones(2, 3), torch.ones(2)
    whole = Whole((Part("a", weight), Part("b", torch.ones(4), bias)), tied=weight)
    there = moved(whole, torch.device("meta"))
    first, second = there.parts
    assert (first.name, first.bias, second.name) == ("a", None, "b")
    assert first.weight is there.tied
    tensors = [first.weight, second.weight, second.bias]
    assert [(tensor.shape, tensor.device.type) for tensor in tensors if tensor is not None] == [
        (torch.Size(size), "meta") for size in ([2, 3], [4], [2])
    ]
    assert whole.tied.device.type == "cpu"
