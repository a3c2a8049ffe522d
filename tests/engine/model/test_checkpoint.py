import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from engine.fetch import fetch
from engine.model.checkpoint import Checkpoint, open_checkpoint
from engine.model.config import ModelConfig
from engine.model.fields import ModelError
from engine.model.weights import WeightFileError, weight_shapes
from tests.engine.model import gguf_writer as writer
from tests.engine.model.test_config import GGUF, LLAMA

Weights = dict[str, torch.Tensor]

GGUF_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def random_weights(tied: bool = True) -> Weights:
    torch.manual_seed(3)
    config = ModelConfig.from_huggingface(LLAMA | {"tie_word_embeddings": tied})
    return {name: torch.randn(shape) for name, shape in weight_shapes(config).items()}


def write_folder(folder: Path, weights: Weights, config: Mapping[str, object] = LLAMA) -> Path:
    (folder / "config.json").write_text(json.dumps(dict(config)))
    save_file(weights, folder / "model.safetensors")
    return folder


def interleave(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """As the converter to GGUF does it: row i of each head's second half goes behind row i of its first."""
    first, second = np.split(weight.reshape(num_heads, -1, weight.shape[1]), 2, axis=1)
    return np.stack([first, second], axis=2).reshape(weight.shape)


def gguf_tensors(weights: Weights) -> dict[str, writer.Stored]:
    tensors = {}
    for name, tensor in weights.items():
        values = tensor.numpy()
        if "q_proj" in name or "k_proj" in name:
            values = interleave(values, 4 if "q_proj" in name else 2)
        stored_name = name.replace("model.layers.", "blk.")
        for ours, theirs in GGUF_NAMES.items():
            stored_name = stored_name.replace(ours, theirs)
        tensors[stored_name] = writer.f32(values)
    return tensors


def assert_holds(checkpoint: Checkpoint, wanted: Weights) -> None:
    assert weight_shapes(checkpoint.config).keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(checkpoint.read(name), tensor), name


@pytest.mark.parametrize("tied", [True, False])
def test_safetensors_and_gguf_load_the_same_weights(tmp_path: Path, tied: bool) -> None:
    wanted = random_weights(tied)
    folder = write_folder(tmp_path, wanted, LLAMA | {"tie_word_embeddings": tied})
    file = writer.write_gguf(tmp_path / "m.gguf", GGUF, gguf_tensors(wanted))
    for path in (folder, file):
        checkpoint = open_checkpoint(path)
        assert checkpoint.config.tie_embeddings is tied
        assert_holds(checkpoint, wanted)
        rows = torch.tensor([7, 0, 7])
        found = checkpoint.rows("model.embed_tokens.weight", rows)
        assert torch.equal(found, wanted["model.embed_tokens.weight"][rows])


def test_a_folder_with_one_gguf_is_that_gguf(tmp_path: Path) -> None:
    wanted = random_weights()
    writer.write_gguf(tmp_path / "m.gguf", GGUF, gguf_tensors(wanted))
    assert_holds(open_checkpoint(tmp_path), wanted)


def test_quantised_gguf_is_near_the_weights_it_was_made_from(tmp_path: Path) -> None:
    wanted = random_weights()
    tensors = gguf_tensors(wanted)
    values = wanted["model.layers.0.mlp.up_proj.weight"].numpy()
    tensors["blk.0.ffn_up.weight"] = writer.q8_0(values)
    checkpoint = open_checkpoint(writer.write_gguf(tmp_path / "m.gguf", GGUF, tensors))
    error = (checkpoint.read("model.layers.0.mlp.up_proj.weight").numpy() - values).__abs__().max()
    assert 0 < error <= np.abs(values).max() / 127


def test_gguf_heads_turn_into_ones_for_rotated_halves() -> None:
    """Attention scores agree between ggml's rope on its own rows (neighbours are a pair) and ours (halves are)."""
    random = np.random.default_rng(1)
    ours = random.normal(size=(64, 64))
    hidden = random.normal(size=(5, 64))
    angles = np.arange(5)[:, None, None] * 10_000.0 ** (-np.arange(8) / 8)
    turn = np.exp(1j * angles)
    halves = (hidden @ ours.T).reshape(5, 4, 2, 8)
    pairs = (hidden @ interleave(ours, 4).T).reshape(5, 4, 8, 2)
    by_halves = (halves[:, :, 0] + 1j * halves[:, :, 1]) * turn
    by_pairs = (pairs[..., 0] + 1j * pairs[..., 1]) * turn
    assert np.allclose(by_halves, by_pairs)


def write_shards(folder: Path, weights: Weights) -> dict[str, str]:
    names = list(weights)
    homes = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(names)}
    for shard in set(homes.values()):
        save_file({name: weights[name] for name in names if homes[name] == shard}, folder / shard)
    (folder / "config.json").write_text(json.dumps(LLAMA))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": homes}))
    return homes


def test_shards_are_joined(tmp_path: Path) -> None:
    wanted = random_weights()
    write_shards(tmp_path, wanted)
    assert_holds(open_checkpoint(tmp_path), wanted)


def test_generation_config_adds_end_tokens(tmp_path: Path) -> None:
    write_folder(tmp_path, random_weights())
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 9]}')
    assert open_checkpoint(tmp_path).config.eos_token_ids == (2, 9)


def test_what_follows_from_the_config_may_be_stored_too(tmp_path: Path) -> None:
    wanted = random_weights()
    extra = {"lm_head.weight": torch.zeros(40, 64), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)}
    assert_holds(open_checkpoint(write_folder(tmp_path, wanted | extra)), wanted)


@pytest.mark.parametrize("shard", ["../model.safetensors", "/etc/passwd", "absent.safetensors", 3])
def test_an_index_may_name_only_files_of_its_folder(tmp_path: Path, shard: object) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    write_folder(tmp_path, random_weights())
    homes: dict[str, object] = dict(write_shards(folder, random_weights()))
    homes["model.norm.weight"] = shard
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": homes}))
    with pytest.raises(WeightFileError, match=r"of tensor model\.norm\.weight is not in this folder"):
        open_checkpoint(folder)


def test_a_shard_that_lacks_what_the_index_promises_is_named(tmp_path: Path) -> None:
    weights = random_weights()
    homes = write_shards(tmp_path, weights)
    shard = homes.pop("model.norm.weight")
    save_file({name: weights[name] for name, home in homes.items() if home == shard}, tmp_path / shard)
    with pytest.raises(WeightFileError, match=rf"{shard}: missing tensors model\.norm\.weight"):
        open_checkpoint(tmp_path)


def without(weights: Weights, name: str) -> Weights:
    return {key: tensor for key, tensor in weights.items() if key != name}


UP = "model.layers.1.mlp.up_proj.weight"
WRONG_WEIGHTS = {
    rf"missing tensors {UP}$": without(random_weights(), UP),
    r"unexpected tensors model\.layers\.2\.bias": random_weights() | {"model.layers.2.bias": torch.zeros(1)},
    rf"{UP} has shape \(64, 96\), the config asks for \(96, 64\)": random_weights() | {UP: torch.zeros(64, 96)},
    rf"{UP} has type I32, not a float": random_weights() | {UP: torch.zeros(96, 64, dtype=torch.int32)},
    r"missing tensors .*, .*, .*, .*, .* and 14 more": {"model.norm.weight": torch.zeros(64)},
}


@pytest.mark.parametrize("complaint", WRONG_WEIGHTS)
def test_safetensors_that_do_not_fit_the_config_are_refused(tmp_path: Path, complaint: str) -> None:
    write_folder(tmp_path, WRONG_WEIGHTS[complaint])
    with pytest.raises(WeightFileError, match=complaint):
        open_checkpoint(tmp_path)


def test_gguf_that_does_not_fit_its_metadata_is_refused(tmp_path: Path) -> None:
    tensors = gguf_tensors(random_weights())
    path = tmp_path / "m.gguf"
    bias = {"blk.0.attn_q.bias": writer.f32(np.zeros(64, np.float32))}
    writer.write_gguf(path, GGUF, tensors | bias)
    with pytest.raises(WeightFileError, match=r"unexpected tensors blk\.0\.attn_q\.bias"):
        open_checkpoint(path)
    writer.write_gguf(path, GGUF, {name: stored for name, stored in tensors.items() if "attn_k" not in name})
    with pytest.raises(WeightFileError, match=r"missing tensors blk\.0\.attn_k\.weight, blk\.1\.attn_k\.weight"):
        open_checkpoint(path)
    writer.write_gguf(path, GGUF | {"llama.vocab_size": 41}, tensors)
    with pytest.raises(
        WeightFileError, match=r"token_embd\.weight has shape \(40, 64\), the config asks for \(41, 64\)"
    ):
        open_checkpoint(path)


def test_damaged_safetensors_and_missing_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(ModelError, match=r"config\.json: cannot be read"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    with pytest.raises(WeightFileError, match=r"model\.safetensors: not a sound safetensors file"):
        open_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "other.safetensors")
    with pytest.raises(WeightFileError, match=r"neither model\.safetensors nor model\.safetensors\.index\.json"):
        open_checkpoint(tmp_path)


def test_pickled_weights_are_never_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    torch.save(random_weights(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"no safetensors and 0 \.gguf"):
        open_checkpoint(tmp_path)


@pytest.mark.slow
def test_the_real_model_is_whole() -> None:
    checkpoint = open_checkpoint(fetch("smollm2-135m-instruct"))
    config = checkpoint.config
    assert (config.num_layers, config.hidden_size, config.num_kv_heads, config.vocab_size) == (30, 576, 3, 49152)
    assert all(torch.isfinite(checkpoint.read(name)).all() for name in weight_shapes(config))
    assert 0.05 < checkpoint.read("model.embed_tokens.weight").std().item() < 0.5


@pytest.mark.parametrize(("kind", "bits"), [(2, 4), (3, 4), (8, 8)])
def test_codes_are_those_of_the_weights(tmp_path: Path, kind: int, bits: int) -> None:
    tensors = gguf_tensors(random_weights())
    random = np.random.default_rng(5)
    for name in ("attn_q", "ffn_up"):
        shape = tensors[f"blk.0.{name}.weight"].shape
        values = random.normal(size=shape).astype(np.float32)
        tensors[f"blk.0.{name}.weight"] = writer.q8_0(values) if kind == 8 else writer.random_q4(kind, shape, random)[0]
    checkpoint = open_checkpoint(writer.write_gguf(tmp_path / "m.gguf", GGUF, tensors))
    for name in ("self_attn.q_proj", "mlp.up_proj"):
        codes = checkpoint.codes(f"model.layers.0.{name}.weight")
        assert codes is not None
        assert codes.bits == bits
        torch.testing.assert_close(codes.widened(), checkpoint.read(f"model.layers.0.{name}.weight"))
    assert checkpoint.codes("model.layers.0.mlp.down_proj.weight") is None
