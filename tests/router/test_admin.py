import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
from aiohttp import web

from router import admin
from router.transports.web import UnknownReplica, Views, admin_routes
from tests.router.served import nobody, served

ROWS: list[dict[str, Any]] = [
    {
        "id": "a:8000",
        "state": "ready",
        "breaker": "closed",
        "models": ["m", "m-lora"],
        "in_flight": 3,
        "running": 2,
        "waiting": 0,
        "kv_used_ratio": 0.256,
        "cached_blocks": 1234,
        "speed_source": "own",
        "knowledge": "EXACT",
    },
    {
        "id": "b:8000/base",
        "state": "starting",
        "breaker": "open",
        "models": [],
        "in_flight": 0,
        "running": None,
        "waiting": None,
        "kv_used_ratio": None,
        "cached_blocks": 0,
        "speed_source": "prior",
        "knowledge": "BLIND: no tokenizer",
    },
]


class FakeRouter:
    """A router's admin port, as the router serves it, over rows of a test."""

    def __init__(self) -> None:
        self.rows = ROWS
        self.drained: list[tuple[str, bool]] = []

    def app(self) -> web.Application:
        return admin_routes(
            Views(
                version="1",
                models=list,
                live=dict,
                ready=lambda: (True, {}),
                replicas=lambda: self.rows,
                set_draining=self._set_draining,
                metrics=bytes,
            )
        )

    def _set_draining(self, id: str, on: bool) -> None:
        if id not in [row["id"] for row in self.rows]:
            raise UnknownReplica(f"There is no replica `{id}`; there are: a:8000.", param="id")
        self.drained.append((id, on))


def answering(status: int, body: object) -> web.Application:
    """A server that is no router's admin port."""

    async def answer(_: web.Request) -> web.Response:
        return (
            web.Response(status=status, text=body) if isinstance(body, str) else web.json_response(body, status=status)
        )

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    return app


async def test_the_table_shows_each_replica(capsys: pytest.CaptureFixture[str]) -> None:
    async with served(FakeRouter().app()) as url:
        assert await admin.show_replicas(url + "/", as_json=False) == 0
    out, err = capsys.readouterr()
    rows = [re.split("  +", line) for line in out.splitlines()]
    assert rows == [
        "REPLICA,STATE,BREAKER,IN FLIGHT,RUNNING,WAITING,KV USED,BLOCKS KNOWN,SPEED FROM,KNOWLEDGE,MODELS".split(","),
        ["a:8000", "ready", "closed", "3", "2", "0", "26%", "1234", "own", "EXACT", "m, m-lora"],
        ["b:8000/base", "starting", "open", "0", "-", "-", "-", "0", "prior", "BLIND: no tokenizer", "-"],
    ]
    assert err == ""


async def test_the_columns_stand_under_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    async with served(FakeRouter().app()) as url:
        await admin.show_replicas(url, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].index("STATE") == lines[1].index("ready") == lines[2].index("starting")
    assert lines[0].index("MODELS") == lines[1].index("m, m-lora")


async def test_where_each_adapter_stands_is_a_table_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    router = FakeRouter()
    failed = {"state": "failed", "reason": "no such path"}
    router.rows = [{"id": "a:1", "adapters": {"red": failed}}, {"id": "b:1", "adapters": {}}]
    async with served(router.app()) as url:
        assert await admin.show_adapters(url + "/", as_json=False) == 0
        assert capsys.readouterr().out.splitlines() == [
            "ADAPTER  REPLICA  STATE   REASON",
            "red      a:1      failed  no such path",
        ]
        assert await admin.show_adapters(url, as_json=True) == 0
        assert json.loads(capsys.readouterr().out) == [{"lora_name": "red", "replica": "a:1", **failed}]
    assert await admin.show_adapters(nobody(), as_json=False) == 1


async def test_no_replicas_are_an_empty_table(capsys: pytest.CaptureFixture[str]) -> None:
    router = FakeRouter()
    router.rows = []
    async with served(router.app()) as url:
        assert await admin.show_replicas(url, as_json=False) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


async def test_json_is_what_the_router_says(capsys: pytest.CaptureFixture[str]) -> None:
    async with served(FakeRouter().app()) as url:
        assert await admin.show_replicas(url, as_json=True) == 0
    assert json.loads(capsys.readouterr().out) == ROWS


@pytest.mark.parametrize("id", ["a:8000", "b:8000/base"])
async def test_a_replica_drains_and_serves_again(capsys: pytest.CaptureFixture[str], id: str) -> None:
    router = FakeRouter()
    async with served(router.app()) as url:
        assert await admin.drain(url, id, undo=False) == 0
        assert await admin.drain(url, id, undo=True) == 0
    assert router.drained == [(id, True), (id, False)]
    assert capsys.readouterr().out == f"{id} gets nothing new\n{id} serves again\n"


async def test_a_replica_that_nobody_knows_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    async with served(FakeRouter().app()) as url:
        assert await admin.drain(url, "c:1", undo=False) == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("", "pointsman: There is no replica `c:1`; there are: a:8000.\n")


async def test_nobody_there_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    url = nobody()
    assert await admin.show_replicas(url, as_json=False) == 1
    assert await admin.drain(url, "a:1", undo=False) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.startswith(f"pointsman: no router answers at {url}/admin/replicas") for line in err.splitlines()] == [
        True,
        True,
    ]


@pytest.mark.parametrize("url", ["nonsense", "http://", "ftp://a", "http://host.invalid:1"])
async def test_a_url_that_is_none_is_one_sentence(capsys: pytest.CaptureFixture[str], url: str) -> None:
    assert await admin.show_replicas(url, as_json=False) == 1
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert err.startswith("pointsman: ")


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, "<html>hello</html>"),
        (200, {"something": "else"}),
        (200, [1]),
        (404, "404: Not Found"),
        (404, {"detail": "Not Found"}),
        (500, {"error": "broken"}),
        (404, {"error": {"message": "There is no route GET /admin/replicas."}}),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
async def test_a_server_that_is_no_router_is_one_sentence(
    capsys: pytest.CaptureFixture[str], status: int, body: object, as_json: bool
) -> None:
    async with served(answering(status, body)) as url:
        assert await admin.show_replicas(url, as_json=as_json) == 1
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert err.startswith("pointsman: ")
    if isinstance(body, Mapping) and isinstance(body.get("error"), Mapping):
        assert err == f"pointsman: {body['error']['message']}\n"
