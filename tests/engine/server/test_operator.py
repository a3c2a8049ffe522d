"""The operator's routes over real HTTP, beside the others of the same engine."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from engine.adapters import Adapter, AdapterError, ReadAdapter
from engine.control import Control
from engine.loop import EngineLoop
from engine.server.http import Service
from engine.server.operator import Operator
from engine.tokenizer import Tokenizer
from tests.engine.model.gguf_writer import write_gguf
from tests.engine.model.tiny_tokenizer import METADATA
from tests.engine.requests import core
from tests.engine.steps import Steps

Client = TestClient[Any, Any]


class Served:
    """An engine that counts, and its routes. `told` is what the runner was told of sleep; `kept` the adapters."""

    def __init__(self, folder: Path) -> None:
        self.steps = Steps()
        self.steps.allow(1000)
        self.engine = EngineLoop(core(num_slots=2), self.steps.run)
        self.told: list[str] = []
        self.kept: list[str] = []
        tokenizer = Tokenizer.load(write_gguf(folder / "tiny.gguf", METADATA, {}))
        self.service = Service(self.engine, tokenizer, "tiny", "tiny.gguf", vocab_size=100, max_model_len=64)
        self.control = Control(
            self.engine, "tiny", self.read, self.keep, lambda level: self.told.append(f"sleep {level}"), self.wake
        )

    def read(self, path: Path) -> ReadAdapter[None]:
        if path.name == "broken":
            raise AdapterError(f"{path}: not a sound safetensors file")
        return ReadAdapter(rank=8, digest=1, weights=None)

    def keep(self, adapter: Adapter, weights: None) -> None:
        self.kept.append(adapter.name)

    def wake(self) -> None:
        if "no room" in self.told:
            raise MemoryError("no room for the KV cache")
        self.told.append("wake")


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    served = Served(tmp_path)
    served.engine.start()
    yield served
    served.engine.stop("the test is over")
    served.steps.allow(1000)
    assert await asyncio.to_thread(served.engine.join, 10)


@pytest.fixture
async def client(served: Served) -> AsyncIterator[Client]:
    app = served.service.app()
    app.add_routes(Operator(served.control).routes())
    async with TestClient(TestServer(app)) as client:
        yield client


async def post(client: Client, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
    answer = await client.post(path, json=body)
    return answer.status, (await answer.json() if answer.content_type == "application/json" else await answer.text())


async def complete(client: Client, model: str) -> tuple[int, Any]:
    return await post(client, "/v1/completions", {"model": model, "prompt": [1, 2], "max_tokens": 2, "temperature": 0})


async def ids(client: Client) -> dict[str, str | None]:
    """Model id -> its parent."""
    body = await (await client.get("/v1/models")).json()
    return {model["id"]: model["parent"] for model in body["data"]}


async def test_where_host_memory_is_full_the_least_recently_used_adapter_is_no_model_any_more(
    client: Client, served: Served
) -> None:
    served.engine.core.scheduler.adapters.max_loaded = 2
    for name in ("blue", "red", "green"):
        status, _ = await post(client, "/v1/load_lora_adapter", {"lora_name": name, "lora_path": f"/adapters/{name}"})
        assert status == 200
    models = await (await client.get("/v1/models")).json()
    assert [model["id"] for model in models["data"]] == ["tiny", "red", "green"]


async def test_a_loaded_adapter_is_a_model_with_its_base_as_parent(client: Client, served: Served) -> None:
    loaded = await post(client, "/v1/load_lora_adapter", {"lora_name": "blue", "lora_path": "/adapters/blue"})
    assert loaded == (200, "Success: LoRA adapter 'blue' added successfully.")
    assert served.kept == ["blue"]
    assert await ids(client) == {"tiny": None, "blue": "tiny"}
    described = await (await client.get("/v1/models/blue")).json()
    assert (described["id"], described["root"], described["parent"]) == ("blue", "/adapters/blue", "tiny")
    status, answer = await complete(client, "blue")
    assert (status, answer["model"]) == (200, "blue")
    unloaded = await post(client, "/v1/unload_lora_adapter", {"lora_name": "blue"})
    assert unloaded == (200, "Success: LoRA adapter 'blue' removed successfully.")
    assert await ids(client) == {"tiny": None}
    status, answer = await complete(client, "blue")
    assert (status, answer["error"]["code"]) == (404, "model_not_found")
    assert answer["error"]["message"] == "the model blue does not exist; this engine serves tiny"


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "message"),
    [
        ("load", {"lora_name": "blue"}, 400, "lora_path", "lora_path is missing"),
        ("load", {"lora_name": "", "lora_path": "/a"}, 400, "lora_path", "lora_name is empty"),
        ("load", {"lora_name": "tiny", "lora_path": "/a"}, 400, "lora_path", "lora_name 'tiny' is the model's own"),
        ("load", {"lora_name": "a", "lora_path": "/broken"}, 400, "lora_path", "/broken: not a sound safetensors file"),
        ("load", {"lora_name": "a", "lora_path": "/a", "load_inplace": True}, 400, "load_inplace", "not supported"),
        ("unload", {"lora_name": "red"}, 404, "lora_name", "the adapter red is not loaded"),
    ],
)
async def test_what_cannot_be_loaded_or_unloaded_says_why(
    client: Client, path: str, body: dict[str, Any], status: int, param: str, message: str
) -> None:
    found, answer = await post(client, f"/v1/{path}_lora_adapter", body)
    assert (found, answer["error"]["param"]) == (status, param)
    assert message in answer["error"]["message"]


async def test_a_name_is_not_loaded_twice(client: Client) -> None:
    body = {"lora_name": "blue", "lora_path": "/adapters/blue"}
    await post(client, "/v1/load_lora_adapter", body)
    status, answer = await post(client, "/v1/load_lora_adapter", body)
    assert (status, answer["error"]["message"]) == (400, "the adapter blue is loaded already; unload it first")


@pytest.mark.parametrize("level", [None, 1, 2])
async def test_asleep_requests_are_told_how_to_wake_it(client: Client, served: Served, level: int | None) -> None:
    assert (await post(client, "/sleep" if level is None else f"/sleep?level={level}"))[0] == 200
    assert await (await client.get("/is_sleeping")).json() == {"is_sleeping": True}
    status, answer = await complete(client, "tiny")
    assert (status, answer["error"]["message"]) == (503, "the engine sleeps; POST /wake_up")
    assert (await post(client, "/wake_up"))[0] == 200
    assert await (await client.get("/is_sleeping")).json() == {"is_sleeping": False}
    assert (await complete(client, "tiny"))[0] == 200
    assert served.told == [f"sleep {level or 1}", "wake"]


@pytest.mark.parametrize(("path", "param"), [("/sleep?level=3", "level"), ("/wake_up?tags=weights", "tags")])
async def test_what_is_not_supported_is_refused_by_name(client: Client, path: str, param: str) -> None:
    status, answer = await post(client, path)
    assert (status, answer["error"]["param"]) == (400, param)


async def test_a_request_that_is_open_when_it_falls_asleep_is_finished_after_it_woke(
    client: Client, served: Served
) -> None:
    while not served.steps.leave.empty():
        served.steps.leave.get()
    asked = asyncio.create_task(complete(client, "tiny"))
    await served.steps.next()
    sleeping = asyncio.create_task(served.control.sleep(1))
    await asyncio.sleep(0)
    served.steps.allow()
    await sleeping
    assert not asked.done()
    await post(client, "/wake_up")
    served.steps.allow(2)
    status, answer = await asked
    assert (status, answer["usage"]["completion_tokens"]) == (200, 2)


async def test_an_engine_that_cannot_wake_sleeps_on(client: Client, served: Served) -> None:
    await post(client, "/sleep")
    served.told.append("no room")
    assert (await post(client, "/wake_up"))[0] == 500
    assert await (await client.get("/is_sleeping")).json() == {"is_sleeping": True}
