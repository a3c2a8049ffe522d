import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.adapters import AdapterError, ReadAdapter
from engine.lora import read_lora
from engine.model.low_rank import Layers
from engine.model.weights import weight_shapes
from tests.engine.lora_folder import write_lora
from tests.engine.model.tiny_llama import tiny_config

SHAPES = weight_shapes(tiny_config())
QUERY = "base_model.model.model.layers.0.self_attn.q_proj"


def read(folder: Path, max_rank: int = 64) -> ReadAdapter[Layers]:
    return read_lora(folder, SHAPES, max_rank)


def added(adapter: ReadAdapter[Layers], layer: int, projection: str) -> torch.Tensor:
    part = adapter.weights[layer][projection]
    return part.outer @ part.inner


def test_each_projection_gets_what_peft_adds_to_it(tmp_path: Path) -> None:
    expected = write_lora(tmp_path, SHAPES, rank=3, alpha=12)
    adapter = read(tmp_path)
    assert adapter.rank == 3
    for name, delta in expected.items():
        _, _, layer, _, projection, _ = name.split(".")
        torch.testing.assert_close(added(adapter, int(layer), projection), delta)


def test_projections_without_weights_are_left_alone(tmp_path: Path) -> None:
    write_lora(tmp_path, SHAPES, projections=["v_proj", "down_proj"])
    assert [sorted(layer) for layer in read(tmp_path).weights] == [["down_proj", "v_proj"]] * 2


def test_rank_stabilised_adapters_are_scaled_by_the_root(tmp_path: Path) -> None:
    plain = write_lora(tmp_path, SHAPES, rank=4, alpha=8, use_rslora=True)
    delta = plain["model.layers.1.mlp.up_proj.weight"]
    torch.testing.assert_close(added(read(tmp_path), 1, "up_proj"), delta * 4 / math.sqrt(4))


def test_single_modules_may_have_another_rank_and_alpha(tmp_path: Path) -> None:
    inner, outer = torch.randn(2, 48), torch.randn(32, 2)
    tensors = {f"{QUERY}.lora_A.weight": inner, f"{QUERY}.lora_B.weight": outer}
    ranks, alphas = {r"layers\.0\.self_attn\.q_proj": 2}, {"q_proj": 10}
    write_lora(tmp_path, SHAPES, rank=4, alpha=8, tensors=tensors, rank_pattern=ranks, alpha_pattern=alphas)
    torch.testing.assert_close(added(read(tmp_path), 0, "q_proj"), outer @ inner * 5)


def test_other_weights_or_options_have_another_digest(tmp_path: Path) -> None:
    digests = set()
    for seed, alpha in [(0, 8), (1, 8), (0, 9)]:
        write_lora(tmp_path, SHAPES, seed=seed, alpha=alpha)
        digests.add(read(tmp_path).digest)
    assert len(digests) == 3
    write_lora(tmp_path, SHAPES, seed=0, alpha=8)
    assert read(tmp_path).digest in digests


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"use_dora": True}, "use_dora True is not supported"),
        ({"bias": "all"}, "bias 'all' is not supported"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"peft_type": "IA3"}, "peft_type 'IA3' is not supported"),
        ({"r": 0}, "r must be a number above 0, not 0"),
        ({"lora_alpha": None}, "lora_alpha must be a number above 0"),
        ({"r": 5}, r"_proj has rank 4, adapter_config.json says 5"),
        ({"rank_pattern": {"(": 4}}, "rank_pattern: '\\('"),
        ({"alpha_pattern": {"q_proj": -1}}, "alpha_pattern: 'q_proj' must be above 0"),
        ({"alpha_pattern": [1]}, "alpha_pattern must be an object"),
    ],
)
def test_options_that_are_not_honoured_are_refused_by_name(
    tmp_path: Path, config: dict[str, Any], complaint: str
) -> None:
    write_lora(tmp_path, SHAPES, **config)
    with pytest.raises(AdapterError, match=complaint):
        read(tmp_path)


@pytest.mark.parametrize(
    ("tensors", "complaint"),
    [
        ({f"{QUERY}.lora_A.weight": torch.zeros(4, 47)}, r"has shape \(4, 47\), the model asks for \(rank, 48\)"),
        ({f"{QUERY}.lora_B.weight": torch.zeros(31, 4)}, r"has shape \(31, 4\), the model asks for \(32, rank\)"),
        ({f"{QUERY}.lora_A.weight": torch.zeros(4)}, r"has shape \(4,\)"),
        ({f"{QUERY}.lora_A.weight": torch.zeros(3, 48)}, "has rank 3 in lora_A and 4 in lora_B"),
        (
            {f"{QUERY}.lora_A.weight": torch.zeros(65, 48)},
            r"has rank 65, this engine takes 1 to 64 \(--max",
        ),
        ({f"{QUERY}.lora_A.weight": torch.zeros(4, 48).long()}, "has type I64"),
        ({"base_model.model.lm_head.lora_A.weight": torch.zeros(4, 48)}, "tensor base_model.model.lm_head.lora_A"),
        ({QUERY.replace(".0.", ".9.") + ".lora_A.weight": torch.zeros(4, 48)}, "a layer that the model does not have"),
        (
            {QUERY.replace("self_attn", "mlp") + ".lora_A.weight": torch.zeros(4, 48)},
            "not supported; LoRA on q_proj",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name(
    tmp_path: Path, tensors: dict[str, torch.Tensor], complaint: str
) -> None:
    write_lora(tmp_path, SHAPES, tensors=tensors)
    with pytest.raises(AdapterError, match=complaint):
        read(tmp_path)


def test_one_side_alone_is_refused(tmp_path: Path) -> None:
    write_lora(tmp_path, SHAPES, projections=[], tensors={f"{QUERY}.lora_A.weight": torch.zeros(4, 48)})
    with pytest.raises(AdapterError, match="has lora_A only, not both A and B"):
        read(tmp_path)


def test_an_adapter_without_weights_is_refused(tmp_path: Path) -> None:
    write_lora(tmp_path, SHAPES, projections=[])
    with pytest.raises(AdapterError, match="there are no LoRA weights in it"):
        read(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"[" * 100_000, b"\xff" * 9, b" " * 2_000_000])
def test_a_broken_config_is_named(tmp_path: Path, content: bytes) -> None:
    write_lora(tmp_path, SHAPES)
    (tmp_path / "adapter_config.json").write_bytes(content)
    with pytest.raises(AdapterError, match=r"adapter_config\.json"):
        read(tmp_path)


@pytest.mark.parametrize("cut", [0, 7, 100, -1])
def test_a_truncated_weight_file_is_named(tmp_path: Path, cut: int) -> None:
    write_lora(tmp_path, SHAPES)
    file = tmp_path / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(AdapterError, match=r"adapter_model\.safetensors: not a sound safetensors file"):
        read(tmp_path)


def test_a_header_that_promises_more_than_the_file_has_is_refused(tmp_path: Path) -> None:
    write_lora(tmp_path, SHAPES)
    header = json.dumps({f"{QUERY}.lora_A.weight": {"dtype": "F32", "shape": [2**40, 48], "data_offsets": [0, 2**47]}})
    content = len(header).to_bytes(8, "little") + header.encode()
    (tmp_path / "adapter_model.safetensors").write_bytes(content)
    with pytest.raises(AdapterError, match="not a sound safetensors file"):
        read(tmp_path)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match=r"nowhere/adapter_config\.json: cannot be read: .*No such file"):
        read(tmp_path / "nowhere")
