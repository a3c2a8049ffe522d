"""The two orders on the data port, as clients of vLLM give them, and the list for operators."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from router.admission.bookfile import BookFile
from router.transports.adapters import Served, add_adapter_list, add_adapter_routes
from router.transports.web import openai_errors
from tests.router.replicas.lora_engine import LoraEngine, Yard, opened
from tests.router.served import served


@asynccontextmanager
async def port(folder: Path, *engines: LoraEngine) -> AsyncIterator[tuple[str, Yard]]:
    async with opened(BookFile(folder / "adapters.json"), *engines) as yard:

        async def settled() -> None: ...

        def adapters() -> dict[str, str]:
            found = {str(card["id"]): card["parent"] for card in yard.registry.models()}
            return {name: str(parent) for name, parent in found.items() if parent is not None}

        app = web.Application(middlewares=[openai_errors])
        pools = yard.registry.pools
        add_adapter_routes(app, yard.rollout, Served(lambda: [pool.model for pool in pools()], adapters, settled))
        async with served(app) as url:
            yield url, yard


async def order(url: str, verb: str, **fields: object) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/{verb}_lora_adapter", json=fields) as answer,
    ):
        return answer.status, await answer.json()


def told(answer: Any) -> list[tuple[str, str]]:
    return [(each["state"], each["reason"]) for each in answer["replicas"]]


async def test_a_load_answers_with_the_state_of_each_replica(tmp_path: Path) -> None:
    async with port(tmp_path, LoraEngine(), LoraEngine()) as (url, _):
        status, answer = await order(url, "load", lora_name="red", lora_path="/red")
        assert (status, told(answer)) == (200, [("loaded", "")] * 2)
        assert (answer["lora_name"], answer["base_model_name"]) == ("red", "base")
        assert (await order(url, "load", lora_name="red", lora_path="/red"))[0] == 200


async def test_a_load_that_only_some_could_do_is_207_and_says_who_and_why(tmp_path: Path) -> None:
    bad = LoraEngine()
    bad.missing.add("/red")
    async with port(tmp_path, bad, LoraEngine()) as (url, _):
        status, answer = await order(url, "load", lora_name="red", lora_path="/red")
        assert (status, told(answer)) == (207, [("failed", "No adapter found for /red"), ("loaded", "")])


async def test_a_load_that_nobody_could_do_is_an_error_with_each_replicas_words(tmp_path: Path) -> None:
    bad = LoraEngine()
    bad.missing.add("/red")
    async with port(tmp_path, bad) as (url, _):
        status, answer = await order(url, "load", lora_name="red", lora_path="/red")
        assert (status, answer["error"]["param"]) == (400, "lora_path")
        assert f"{bad.id}: No adapter found for /red" in answer["error"]["message"]
        assert (await order(url, "unload", lora_name="red"))[0] == 404


async def test_a_load_while_no_replica_is_ready_is_202_and_done_when_one_is(tmp_path: Path) -> None:
    engine = LoraEngine()
    async with port(tmp_path, engine) as (url, yard):
        await yard.lose(engine)
        status, answer = await order(url, "load", lora_name="red", lora_path="/red")
        assert (status, told(answer)) == (202, [("waiting", "it is failed")])
        await engine.return_()
        await engine.until(lambda: engine.orders == ["load red"])


async def test_an_unload_may_be_said_twice_and_of_what_nobody_knows_is_404(tmp_path: Path) -> None:
    async with port(tmp_path, LoraEngine()) as (url, yard):
        await order(url, "load", lora_name="red", lora_path="/red")
        for _ in range(2):
            assert (await order(url, "unload", lora_name="red", lora_int_id=1))[0] == 200
        assert yard.engines[0].loaded == {}
        status, answer = await order(url, "unload", lora_name="green")
        assert (status, answer["error"]["param"]) == (404, "lora_name")


async def test_an_adapter_that_an_engine_brought_along_can_be_unloaded(tmp_path: Path) -> None:
    engine = LoraEngine()
    engine.loaded["own"] = "/own"
    engine.list_adapters()
    async with port(tmp_path, engine) as (url, _):
        assert (await order(url, "unload", lora_name="own"))[0] == 200
        assert engine.loaded == {}


async def test_other_weights_under_a_name_must_be_wished_for(tmp_path: Path) -> None:
    async with port(tmp_path, LoraEngine()) as (url, yard):
        await order(url, "load", lora_name="red", lora_path="/red")
        status, answer = await order(url, "load", lora_name="red", lora_path="/redder")
        assert (status, answer["error"]["param"]) == (400, "lora_name")
        assert (await order(url, "load", lora_name="red", lora_path="/redder", load_inplace=True))[0] == 200
        assert yard.engines[0].loaded == {"red": "/redder"}


async def test_with_several_base_models_one_must_be_named(tmp_path: Path) -> None:
    async with port(tmp_path, LoraEngine(), LoraEngine("other")) as (url, yard):
        status, answer = await order(url, "load", lora_name="red", lora_path="/red")
        assert (status, answer["error"]["param"]) == (400, "base_model_name")
        assert "base, other" in answer["error"]["message"]
        assert (await order(url, "load", lora_name="red", lora_path="/r", base_model_name="other"))[0] == 200
        assert [engine.loaded for engine in yard.engines] == [{}, {"red": "/r"}]
        assert (await order(url, "load", lora_name="x", lora_path="/x", base_model_name="no"))[0] == 404


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"lora_path": "/red"}, "lora_name"),
        ({"lora_name": "red"}, "lora_path"),
        ({"lora_name": "red", "lora_path": 7}, "lora_path"),
        ({"lora_name": " ", "lora_path": "/red"}, "lora_name"),
        ({"lora_name": "red", "lora_path": ""}, "lora_path"),
        ({"lora_name": "base", "lora_path": "/red"}, "lora_name"),
        ({"lora_name": "red", "lora_path": "/red", "rank": 3}, "rank"),
    ],
)
async def test_what_is_wrong_is_named(tmp_path: Path, fields: dict[str, object], param: str) -> None:
    async with port(tmp_path, LoraEngine()) as (url, yard):
        status, answer = await order(url, "load", **fields)
        assert (status, answer["error"]["param"]) == (400, param)
        assert yard.engines[0].orders == []


async def test_operators_see_where_each_adapter_stands() -> None:
    app = web.Application()
    standing = {"red": {"state": "failed", "reason": "no such path"}}
    add_adapter_list(app, lambda: [{"id": "a:1", "adapters": standing}, {"id": "b:1", "adapters": {}}])
    async with served(app) as url, aiohttp.ClientSession() as session, session.get(f"{url}/admin/adapters") as answer:
        assert (await answer.json())["adapters"] == [
            {"lora_name": "red", "replica": "a:1", "state": "failed", "reason": "no such path"}
        ]
