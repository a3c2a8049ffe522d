"""One engine prefills, another decodes: two whole engines with a tiny model, over HTTP and over TCP between them."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine.app import Parts, build
from engine.config import EngineConfig
from engine.model.checkpoint import open_checkpoint
from engine.model.weights import weight_shapes
from tests.engine.lora_folder import write_lora
from tests.engine.server.tiny_service import Client, served, write_tiny_model

PROMPT = "hello world, " * 20
TO_PREFILL = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_host": None}


@dataclass(frozen=True)
class Engine:
    parts: Parts
    client: Client

    async def complete(self, **fields: Any) -> tuple[int, dict[str, Any]]:
        body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 12, "temperature": 0, "ignore_eos": True} | fields
        answer = await self.client.post("/v1/completions", json=body)
        return answer.status, await answer.json()


@asynccontextmanager
async def engine(folder: Path, *, hands_out: bool = True, **settings: Any) -> AsyncIterator[Engine]:
    path = folder / "tiny.gguf"
    if not path.exists():
        write_tiny_model(path)
    options: dict[str, Any] = {"kv_cache_gib": 0.002, "max_num_seqs": 8, "threads": 1} | settings
    parts = build(EngineConfig(model=str(path), device="cpu", **options))
    async with served(parts.service) as client:
        if not hands_out:
            yield Engine(parts, client)
            return
        async with await parts.transfer.serve("127.0.0.1", 0):
            yield Engine(parts, client)


@asynccontextmanager
async def pair(folder: Path, **settings: Any) -> AsyncIterator[tuple[Engine, Engine]]:
    async with AsyncExitStack() as stack:
        prefill = await stack.enter_async_context(engine(folder, **settings))
        yield prefill, await stack.enter_async_context(engine(folder, hands_out=False, **settings))


async def test_the_engine_that_decodes_says_what_one_alone_says_and_computes_no_block_again(tmp_path: Path) -> None:
    async with pair(tmp_path) as (prefill, decode):
        status, begun = await prefill.complete(max_tokens=1, kv_transfer_params=TO_PREFILL)
        params = begun["kv_transfer_params"]
        assert (status, params["do_remote_prefill"], params["do_remote_decode"]) == (200, True, False)
        status, answer = await decode.complete(kv_transfer_params=params)
        assert status == 200
        _, alone = await prefill.complete()
        assert answer["choices"] == alone["choices"]
        used = answer["usage"]
        # The last token is computed in any case.
        assert used["prompt_tokens_details"]["cached_tokens"] == (used["prompt_tokens"] - 1) // 16 * 16
        stats = decode.parts.transfer.stats
        assert stats.fetched_bytes == used["prompt_tokens"] // 16 * 2 * 2 * 16 * 16 * 4  # layers, K and V, block, width
        assert stats.fetched_s > 0


async def test_adapters_kv_goes_between_engines_that_have_the_same_adapter(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf")
    shapes = weight_shapes(open_checkpoint(path).config)
    for name, seed in (("blue", 1), ("other", 2)):
        write_lora(tmp_path / name, shapes, seed=seed)
    async with pair(tmp_path, lora=(f"blue={tmp_path / 'blue'}",)) as (prefill, decode):
        _, begun = await prefill.complete(model="blue", max_tokens=1, kv_transfer_params=TO_PREFILL)
        params = begun["kv_transfer_params"]
        _, answer = await decode.complete(model="blue", kv_transfer_params=params)
        _, alone = await prefill.complete(model="blue")
        _, base = await prefill.complete()
        assert answer["choices"] == alone["choices"] != base["choices"]
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        # The base's KV is another, and so is that of other weights under the same name.
        _, answer = await decode.complete(kv_transfer_params=params, cache_salt="fresh")
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        await decode.parts.control.unload_adapter("blue")
        await decode.parts.control.load_adapter("blue", str(tmp_path / "other"))
        _, answer = await decode.complete(model="blue", kv_transfer_params=params)
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_a_stream_ends_with_where_its_kv_is(tmp_path: Path) -> None:
    async with engine(tmp_path) as prefill:
        body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 1, "stream": True, "kv_transfer_params": TO_PREFILL}
        answer = await prefill.client.post("/v1/completions", json=body)
        text = await answer.text()
        assert '"kv_transfer_params":{"do_remote_decode":false,"do_remote_prefill":true' in text
        assert text.endswith("data: [DONE]\n\n")


async def test_where_the_kv_is_gone_the_prompt_is_computed(tmp_path: Path) -> None:
    async with pair(tmp_path) as (prefill, decode):
        _, begun = await prefill.complete(max_tokens=1, kv_transfer_params=TO_PREFILL)
        await prefill.parts.control.sleep(1)
        await prefill.parts.control.wake()
        _, answer = await decode.complete(kv_transfer_params=begun["kv_transfer_params"])
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        _, alone = await prefill.complete()
        assert answer["choices"] == alone["choices"]


@pytest.mark.parametrize(
    ("params", "fields", "complaint"),
    [
        (TO_PREFILL, {}, "kv_transfer_params: do_remote_decode: this engine hands out no KV"),
        ({"do_remote_prefill": True}, {}, "kv_transfer_params: do_remote_prefill needs remote_engine_id"),
        ({"do_remote_prefill": "yes"}, {}, "kv_transfer_params.do_remote_prefill: Expected `bool`"),
        ({"do_remote_prefill": True}, {"prompt": ["a", "b"]}, "kv_transfer_params needs a single prompt"),
    ],
)
async def test_what_cannot_be_done_is_refused_by_name(
    tmp_path: Path, params: dict[str, Any], fields: dict[str, Any], complaint: str
) -> None:
    async with engine(tmp_path, hands_out=False) as alone:
        status, answer = await alone.complete(kv_transfer_params=params, **fields)
        assert status == 400
        assert complaint in answer["error"]["message"]
        assert answer["error"]["param"].startswith("kv_transfer_params")
