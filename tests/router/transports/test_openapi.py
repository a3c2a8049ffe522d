"""The OpenAPI document, as made of a list and of what an app serves."""

import json
import re
from typing import Any

from aiohttp import web

from router.transports.openapi import ADMIN, DATA, Operation, add_openapi_route, document
from tests.router.transports.conftest import OpenPorts
from tests.router.transports.port import get


def references(found: Any) -> set[str]:
    if isinstance(found, dict):
        own = {found["$ref"]} if isinstance(found.get("$ref"), str) else set[str]()
        return own.union(*(references(each) for each in found.values()))
    return set[str]().union(*(references(each) for each in found)) if isinstance(found, list) else set()


def test_every_reference_leads_somewhere_and_every_parameter_is_declared() -> None:
    for operations in (DATA, ADMIN):
        whole: Any = json.loads(json.dumps(document(operations, "1")))
        schemas = whole["components"]["schemas"]
        assert {ref.removeprefix("#/components/schemas/") for ref in references(whole)} <= set(schemas)
        assert sum(len(methods) for methods in whole["paths"].values()) == len(operations), "one is there twice"
        for path, methods in whole["paths"].items():
            for shown in methods.values():
                names = [each["name"] for each in shown.get("parameters", [])]
                assert names == re.findall(r"\{(\w+)\}", path)
                assert shown["summary"]


def test_a_body_says_what_must_be_there() -> None:
    whole: Any = document(DATA, "1")
    body = whole["paths"]["/detokenize"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/DetokenizeBody"}
    assert whole["components"]["schemas"]["DetokenizeBody"]["required"] == ["tokens"]


async def test_a_port_shows_what_it_serves_and_what_it_passes_on(open_port: OpenPorts) -> None:
    app = web.Application()
    operations = [Operation("GET", "/a/{id}", "A"), Operation("POST", "/b", "B"), Operation("GET", "/gone", "G")]
    app.router.add_get("/a/{id:.+}", _nothing)
    add_openapi_route(app, operations, "1.2", [("POST", "/b")], ["/v1/rerank", "/v1/audio/*"])
    client = await (await open_port(app)).connect()
    client.send(get("/openapi.json"))
    answer = json.loads((await client.answer()).payload)
    assert answer["info"]["version"] == "1.2"
    assert {path: set(methods) for path, methods in answer["paths"].items()} == {
        "/a/{id}": {"get"},
        "/b": {"post"},
        "/v1/rerank": {"post"},
    }


async def _nothing(_: web.Request) -> web.Response:
    return web.Response()
