"""Everything at once against one whole engine: answers, cancels, adapters that come and go, sleep, a small KV cache."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from engine.app import Parts, build
from engine.config import EngineConfig
from engine.model.checkpoint import open_checkpoint
from engine.model.weights import weight_shapes
from engine.server.operator import Operator
from tests.engine.lora_folder import write_lora
from tests.engine.server.tiny_service import Client, write_tiny_model

pytestmark = pytest.mark.slow

NUM_CLIENTS, NUM_ROUNDS = 12, 12
PROMPTS = ["hello world " * count + "12" * index for count in (1, 6, 14) for index in range(3)]


@dataclass
class Turmoil:
    """`alone` is what each model says to each prompt; `wrong` collects what should not have been."""

    parts: Parts
    client: Client
    folder: Path
    alone: dict[tuple[str, str], str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    num_answers: int = 0

    async def complete(self, model: str, prompt: str, **fields: Any) -> tuple[int, dict[str, Any]]:
        body = {"model": model, "prompt": prompt, "max_tokens": 24, "temperature": 0, "ignore_eos": True} | fields
        async with self.client.post("/v1/completions", json=body) as answer:
            return answer.status, await answer.json()

    async def ask(self, random: Random) -> None:
        model, prompt = random.choice(["tiny", "tiny", "steady", "comes"]), random.choice(PROMPTS)
        wishes = {"priority": random.randrange(3), "cache_salt": random.choice([None, "tenant"])}
        if random.random() < 0.3:
            await self.leave(model, prompt, random)
            return
        status, answer = await self.complete(model, prompt, **wishes)
        if status == 200:
            self.num_answers += 1
            if answer["choices"][0]["text"] != self.alone[model, prompt]:
                self.wrong.append(f"{model} said something else")
        elif (model, status) != ("comes", 404) and status != 503:
            self.wrong.append(f"{model}: {status} {answer}")

    async def leave(self, model: str, prompt: str, random: Random) -> None:
        try:
            async with asyncio.timeout(random.random() * 0.05):
                await self.complete(model, prompt, stream=random.random() < 0.5)
        except (TimeoutError, ValueError):
            pass

    async def operate(self, random: Random) -> None:
        """An adapter comes and goes; now and then, the engine sleeps."""
        for _ in range(NUM_ROUNDS):
            where = {"lora_name": "comes", "lora_path": str(self.folder / "comes")}
            await self.client.post("/v1/load_lora_adapter", json=where)
            await asyncio.sleep(random.random() * 0.1)
            if random.random() < 0.3:
                await self.client.post(f"/sleep?level={random.choice([1, 2])}")
                await self.client.post("/wake_up")
            await self.client.post("/v1/unload_lora_adapter", json={"lora_name": "comes"})

    async def visit(self, seed: int) -> None:
        random = Random(seed)
        for _ in range(NUM_ROUNDS):
            await self.ask(random)


async def start(folder: Path, stack: AsyncExitStack) -> Turmoil:
    path = write_tiny_model(folder / "tiny.gguf")
    shapes = weight_shapes(open_checkpoint(path).config)
    for seed, name in enumerate(("steady", "comes")):
        write_lora(folder / name, shapes, seed=seed)
    block_gib = 2 * 2 * 16 * 16 * 4 / 2**30
    sizes: dict[str, Any] = {"kv_cache_gib": 40.5 * block_gib, "host_kv_gib": 20 * block_gib, "max_loras": 1}
    lora = (f"steady={folder / 'steady'}",)
    parts = build(EngineConfig(model=str(path), device="cpu", threads=1, max_num_seqs=6, lora=lora, **sizes))
    parts.service.engine.start()
    app = parts.service.app()
    app.add_routes(Operator(parts.control).routes())
    client = await stack.enter_async_context(TestClient(TestServer(app, handler_cancellation=True)))
    return Turmoil(parts, client, folder)


async def test_what_is_answered_is_right_and_nothing_is_left_behind(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        turmoil = await start(tmp_path, stack)
        await turmoil.parts.control.load_adapter("comes", str(tmp_path / "comes"))
        for model in ("tiny", "steady", "comes"):
            for prompt in PROMPTS:
                status, answer = await turmoil.complete(model, prompt)
                assert status == 200
                turmoil.alone[model, prompt] = answer["choices"][0]["text"]
        await turmoil.parts.control.unload_adapter("comes")

        async with asyncio.timeout(100), asyncio.TaskGroup() as tasks:
            tasks.create_task(turmoil.operate(Random(99)))
            for seed in range(NUM_CLIENTS):
                tasks.create_task(turmoil.visit(seed))

        assert turmoil.wrong == []
        assert turmoil.num_answers > NUM_CLIENTS
        engine = turmoil.parts.service.engine
        async with asyncio.timeout(20):
            while await engine.call(lambda: engine.core.has_work):
                pass
        scheduler, pool = engine.core.scheduler, engine.core.scheduler.pool
        assert scheduler.num_preemptions > 0
        assert (pool.num_used, pool.num_free + pool.num_cached) == (0, pool.num_blocks)
        assert engine._streams == {}
        assert [(adapter.name, adapter.num_running) for adapter in scheduler.adapters] == [("steady", 0)]
        engine.stop("the test is over")
        assert await asyncio.to_thread(engine.join, 10)
