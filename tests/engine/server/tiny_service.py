"""A whole engine behind its port: a model of two layers with weights by chance, its tokenizer, the real sampler."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp.test_utils import TestClient, TestServer

from engine.app import build
from engine.config import EngineConfig
from engine.server.http import Service
from tests.engine.model.gguf_writer import f32, write_gguf
from tests.engine.model.tiny_tokenizer import METADATA, TOKENS

Client = TestClient[Any, Any]

HIDDEN = 16
NUM_LAYERS = 2


def write_tiny_model(path: Path, **metadata: object) -> Path:
    sizes = {
        "general.architecture": "llama",
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": HIDDEN,
        "llama.block_count": NUM_LAYERS,
        "llama.attention.head_count": 2,
        "llama.context_length": 512,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
    }
    shapes = {"token_embd.weight": (len(TOKENS), HIDDEN), "output_norm.weight": (HIDDEN,)}
    for layer in range(NUM_LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
            shapes[f"blk.{layer}.{name}.weight"] = (HIDDEN, HIDDEN)
        for name in ("attn_norm", "ffn_norm"):
            shapes[f"blk.{layer}.{name}.weight"] = (HIDDEN,)
    random = np.random.default_rng(0)
    weights = {name: f32(random.standard_normal(shape, dtype=np.float32)) for name, shape in shapes.items()}
    return write_gguf(path, METADATA | sizes | metadata, weights)


def tiny_service(folder: Path, *, template: str | None = None, **settings: Any) -> Service:
    folder.mkdir(exist_ok=True)
    metadata = {} if template is None else {"tokenizer.chat_template": template}
    path = write_tiny_model(folder / "tiny.gguf", **metadata)
    settings = {"kv_cache_gib": 0.01, "max_num_seqs": 8, "threads": 1} | settings
    return build(EngineConfig(model=str(path), device="cpu", **settings)).service


@asynccontextmanager
async def served(service: Service) -> AsyncIterator[Client]:
    service.engine.start()
    async with TestClient(TestServer(service.app())) as client:
        yield client
    service.engine.stop("the test is over")
    assert await asyncio.to_thread(service.engine.join, 10)
