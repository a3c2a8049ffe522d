import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.adapters import AdapterError
from engine.app import StartError, build, listen, serve
from engine.config import EngineConfig
from engine.model.fields import ModelError
from engine.model.placement import PlacementError
from tests.engine.model.gguf_writer import f32, write_gguf
from tests.engine.model.tiny_tokenizer import METADATA, TOKENS

BLOCK_BYTES = 2 * 16 * 8 * 4  # keys and values, one layer, 16 tokens, one head of 8, float32


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A whole one-layer model with its tokenizer in one file, 256 positions."""
    sizes = {
        "general.architecture": "llama",
        "llama.embedding_length": 8,
        "llama.feed_forward_length": 8,
        "llama.block_count": 1,
        "llama.attention.head_count": 1,
        "llama.context_length": 256,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
    }
    shapes = {"token_embd.weight": (len(TOKENS), 8), "output_norm.weight": (8,)}
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        shapes[f"blk.0.{name}.weight"] = (8, 8)
    for name in ("attn_norm", "ffn_norm"):
        shapes[f"blk.0.{name}.weight"] = (8,)
    random = np.random.default_rng(0)
    weights = {name: f32(random.standard_normal(shape, dtype=np.float32)) for name, shape in shapes.items()}
    return write_gguf(tmp_path / "tiny-llama.gguf", METADATA | sizes, weights)


def config(model: Path, **settings: Any) -> EngineConfig:
    return EngineConfig(model=str(model), device="cpu", **settings)


def blocks_gib(num_blocks: int) -> float:
    return num_blocks * BLOCK_BYTES / 2**30


def test_a_model_file_becomes_a_service_named_after_it(model: Path) -> None:
    parts = build(config(model, kv_cache_gib=blocks_gib(20)))
    service = parts.service
    assert parts.about == "tiny-llama on cpu, float32, 20 KV blocks, context 256"
    assert (service.model_id, service.root, service.max_model_len) == ("tiny-llama", str(model), 256)
    assert build(config(model, served_model_name="other")).service.model_id == "other"


def test_the_context_is_no_longer_than_the_cache(model: Path) -> None:
    assert build(config(model, kv_cache_gib=blocks_gib(3))).service.max_model_len == 48
    assert build(config(model, max_model_len=100)).service.max_model_len == 100


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"max_model_len": 257}, "--max-model-len 257 is more than the model's 256 positions"),
        ({"max_model_len": 50, "kv_cache_gib": blocks_gib(3)}, "more than the KV cache's 48 tokens"),
        ({"kv_cache_gib": 1e-9}, "less than one KV block"),
        ({"kv_events_config": '{"endpoint": 5}'}, r"--kv-events-config: Expected `str`, got `int` - at `\$.endpoint`"),
    ],
)
def test_sizes_that_cannot_be_are_refused_by_flag(model: Path, settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(StartError, match=complaint):
        build(config(model, **settings))


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"no model at .*/nope; give a \.gguf file"):
        build(config(tmp_path / "nope"))


def test_a_broken_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF, or so it says")
    with pytest.raises(ModelError, match=r"broken\.gguf"):
        build(config(tmp_path / "broken.gguf"))


def test_a_taken_port_is_named() -> None:
    with listen("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(StartError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            listen("127.0.0.1", port)


def test_a_host_that_is_not_ours_is_named() -> None:
    with pytest.raises(StartError, match=r"cannot listen on 192\.0\.2\.1:0"):
        listen("192.0.2.1", 0)


def test_on_a_cpu_the_kv_is_float32_whatever_the_weights_are(model: Path) -> None:
    parts = build(config(model, dtype="bfloat16", kv_cache_gib=blocks_gib(20)))
    assert "bfloat16, 20 KV blocks" in parts.about
    assert parts.service.engine.core.scheduler.pool.num_blocks == 20


def test_the_host_tier_and_the_events_are_as_configured(model: Path) -> None:
    parts = build(config(model, host_kv_gib=blocks_gib(7), kv_events_config='{"enable_kv_cache_events": true}'))
    pool = parts.service.engine.core.scheduler.pool
    assert pool.host.num_blocks == 7
    assert pool.records_changes
    assert repr(parts.events) == "<KvEventPublisher tcp://*:5557 0 batches 0 waiting>"
    assert build(config(model)).events is None


def test_each_phase_of_the_start_is_timed(model: Path) -> None:
    parts = build(config(model))
    assert list(parts.service.engine.core.stats.load_s) == ["open", "weights", "kv_cache", "kernels"]


def test_quantized_weights_that_no_kernel_takes_are_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.model.placement.coded_kernel", lambda: None)
    with pytest.raises(PlacementError, match=r"are kept \(small\) in bfloat16, or by a kernel that needs"):
        build(config(model, quantized="small"))


def test_an_adapter_that_cannot_be_read_stops_the_start_with_its_name(model: Path) -> None:
    with pytest.raises(AdapterError, match=r"/nowhere/adapter_config\.json: cannot be read"):
        build(config(model, lora=("blue=/nowhere",)))


async def test_a_taken_grpc_or_kv_port_stops_the_start(model: Path) -> None:
    with listen("127.0.0.1", 0) as taken, listen("127.0.0.1", 0) as http:
        taken.listen()
        port = taken.getsockname()[1]
        for settings, what in ({"grpc_port": port}, "gRPC"), ({"kv_transfer_port": port}, "KV"):
            parts = build(config(model, **settings))
            with pytest.raises(StartError, match=f"cannot listen on 127.0.0.1:{port} for {what}"):
                await serve(parts, http)
            parts.service.engine.stop("the test is over")
            assert await asyncio.to_thread(parts.service.engine.join, 10)


async def test_events_at_an_address_that_cannot_be_had_stop_the_start(model: Path, tmp_path: Path) -> None:
    events = {"enable_kv_cache_events": True, "endpoint": f"ipc://{tmp_path}/no/folder"}
    parts = build(config(model, kv_events_config=json.dumps(events)))
    with listen("127.0.0.1", 0) as http, pytest.raises(StartError, match="--kv-events-config: endpoint ipc:"):
        await serve(parts, http)
