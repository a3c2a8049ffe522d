"""The indexer's routes: JSON in and out, and errors that name the field."""

from typing import Any

import aiohttp
import pytest
from aiohttp import web

from pointsman.blockhash import block_hashes
from router.prefix.index import BlockIndex
from router.prefix.indexer import Indexer, Instance
from router.transports.indexer import add_indexer_routes
from router.transports.web import Views, admin_routes
from tests.router.served import served

IDS = list(range(32))


def app() -> web.Application:
    index = BlockIndex(2**20)
    index.store("a:1", None, block_hashes(IDS, 16))
    routes = admin_routes(
        Views(
            version="1",
            models=list,
            live=dict,
            ready=lambda: (True, {}),
            replicas=list,
            set_draining=lambda *_: None,
            metrics=bytes,
        )
    )
    add_indexer_routes(
        routes,
        Indexer.over(index, lambda: [Instance("a:1", "a:1", "m", "default", 16)], 2**20),
        everything,
        lessons,
    )
    return routes


async def everything() -> bytes:
    return b"all that is known"


async def lessons() -> bytes:
    return b"all that was learned"


async def post(path: str, body: Any) -> tuple[int, Any]:
    async with served(app()) as url, aiohttp.ClientSession() as session:
        kind = {"data": body} if isinstance(body, bytes) else {"json": body}
        async with session.post(url + path, **kind) as response:
            return response.status, await response.json()


@pytest.mark.parametrize(
    ("path", "asked"),
    [("/query", {"token_ids": IDS}), ("/query_by_hash", {"seq_hashes": block_hashes(IDS, 16)})],
)
async def test_a_query_says_who_holds_how_much(path: str, asked: dict[str, Any]) -> None:
    status, body = await post(path, {"model": "m", "block_size": 16, **asked})
    assert status == 200
    assert body["default"]["a:1"]["longest_matched"] == 32


async def test_all_that_is_known_is_there_for_a_router_that_begins() -> None:
    async with served(app()) as url, aiohttp.ClientSession() as session:
        for path, words in (("/admin/prefix", b"all that is known"), ("/admin/lessons", b"all that was learned")):
            async with session.get(url + path) as response:
                assert await response.read() == words


async def test_an_engine_is_registered_and_unregistered() -> None:
    asked = {"endpoint": "tcp://127.0.0.1:9", "instance_id": "n", "modelname": "m", "block_size": 16, "type": "vLLM"}
    status, body = await post("/register", asked)
    assert (status, body["status"]) == (200, "registered successfully")
    status, body = await post("/unregister", {"instance_id": "n"})
    assert (status, body["error"]["param"]) == (400, "instance_id")


@pytest.mark.parametrize(
    ("body", "param"),
    [(b"{", None), ({"block_size": "16"}, "block_size"), ({"block_size": 16, "token_ids": ["x"]}, "token_ids")],
)
async def test_what_cannot_be_understood_is_refused_by_its_field(body: Any, param: str | None) -> None:
    status, answer = await post("/query", body)
    assert status == 400
    assert answer["error"]["param"] == param
