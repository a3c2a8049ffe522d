import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from router.errors import PointsmanError
from router.transports.web import UnknownReplica, Views, admin_routes, data_routes
from tests.contracts.answers import Answer
from tests.router.transports.conftest import OpenPorts
from tests.router.transports.port import OpenPort, get, post

MODELS = [{"id": "m", "object": "model"}, {"id": "org/m:lora", "object": "model"}]


@dataclass(eq=False)
class Shown:
    """What the pages show, as a test wants it."""

    is_ready: bool = True
    drained: list[tuple[str, bool]] = field(default_factory=list)
    error: Exception | None = None

    def views(self) -> Views:
        return Views(
            version="1.2.3",
            models=self._models,
            live=lambda: {"loop_lag_ms": 0.5},
            ready=lambda: (self.is_ready, {"replicas_ready": int(self.is_ready)}),
            replicas=lambda: [{"id": "a:1", "state": "ready"}],
            set_draining=self._set_draining,
            metrics=lambda: b"# HELP x X.\nx 1\n",
        )

    def _models(self) -> Sequence[Mapping[str, object]]:
        if self.error is not None:
            raise self.error
        return MODELS

    def _set_draining(self, id: str, on: bool) -> None:
        if id == "nobody":
            raise UnknownReplica("There is no replica `nobody`; there are: a:1.", param="id")
        self.drained.append((id, on))


async def data_port(open_port: OpenPorts, shown: Shown | None = None) -> OpenPort:
    return await open_port(data_routes((shown or Shown()).views()))


async def admin_port(open_port: OpenPorts, shown: Shown | None = None) -> OpenPort:
    return await open_port(admin_routes((shown or Shown()).views()))


async def ask(port: OpenPort, request: bytes) -> Answer:
    client = await port.connect()
    client.send(request)
    return await client.answer()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/livez", {"loop_lag_ms": 0.5}),
        ("/readyz", {"replicas_ready": 1}),
        ("/version", {"version": "1.2.3"}),
        ("/v1/models", {"object": "list", "data": MODELS}),
        ("/v1/models/m", MODELS[0]),
        ("/v1/models/org/m:lora", MODELS[1]),
    ],
)
async def test_a_data_page_is_json(open_port: OpenPorts, path: str, body: object) -> None:
    answer = await ask(await data_port(open_port), get(path))
    assert (answer.status, json.loads(answer.payload)) == (200, body)
    assert answer.headers["content-type"].startswith("application/json")


async def test_health_is_an_empty_200_while_the_process_lives(open_port: OpenPorts) -> None:
    for port in (await data_port(open_port, Shown(is_ready=False)), await admin_port(open_port)):
        answer = await ask(port, get("/health"))
        assert (answer.status, answer.payload) == (200, b"")


async def test_readiness_is_503_while_nothing_can_be_served(open_port: OpenPorts) -> None:
    for port in (await data_port(open_port, Shown(is_ready=False)), await admin_port(open_port, Shown(is_ready=False))):
        answer = await ask(port, get("/readyz"))
        assert (answer.status, json.loads(answer.payload)) == (503, {"replicas_ready": 0})


async def test_metrics_are_prometheus_text(open_port: OpenPorts) -> None:
    answer = await ask(await admin_port(open_port), get("/metrics"))
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert answer.payload == b"# HELP x X.\nx 1\n"


async def test_replicas_are_listed_on_the_admin_port_only(open_port: OpenPorts) -> None:
    answer = await ask(await admin_port(open_port), get("/admin/replicas"))
    assert json.loads(answer.payload) == {"replicas": [{"id": "a:1", "state": "ready"}]}
    port = await data_port(open_port)
    for path in ("/admin/replicas", "/metrics"):
        assert (await ask(port, get(path))).status == 404


@pytest.mark.parametrize("id", ["a:1", "host/base/path"])
async def test_a_replica_drains_and_serves_again(open_port: OpenPorts, id: str) -> None:
    shown = Shown()
    port = await admin_port(open_port, shown)
    for verb in ("drain", "undrain"):
        answer = await ask(port, post(f"/admin/replicas/{id}/{verb}", b""))
        assert json.loads(answer.payload) == {"id": id, "draining": verb == "drain"}
    assert shown.drained == [(id, True), (id, False)]


async def test_a_replica_that_nobody_knows_is_404_with_those_that_are(open_port: OpenPorts) -> None:
    answer = await ask(await admin_port(open_port), post("/admin/replicas/nobody/drain", b""))
    assert (answer.status, answer.error["code"], answer.error["param"]) == (404, "unknown_replica", "id")
    assert "a:1" in str(answer.error["message"])


async def test_a_model_that_nobody_serves_is_404_by_name(open_port: OpenPorts) -> None:
    answer = await ask(await data_port(open_port), get("/v1/models/none"))
    assert (answer.status, answer.error["code"], answer.error["param"]) == (404, "model_not_found", "model")
    assert "`none`" in str(answer.error["message"])


# Each reaches aiohttp by another way: no such route, a form of target that it may not understand.
ODD_TARGETS = [
    "/none",
    "/v1",
    "/v1/chat",
    "/v1/chat/completions/",
    "//",
    "/%zz",
    "/%",
    "/?a=b",
    "/a%2Fb",
    "/{id}",
    "/\x7e",
]


@pytest.mark.parametrize("target", ODD_TARGETS)
async def test_an_unknown_route_is_404_with_openais_body(open_port: OpenPorts, target: str) -> None:
    answer = await ask(await data_port(open_port), get(target))
    assert (answer.status, answer.error["code"]) == (404, "unknown_url")
    assert answer.headers["content-type"].startswith("application/json")


@pytest.mark.parametrize(("path", "method"), [("/v1/models", "DELETE"), ("/health", "POST"), ("/v1/models/m", "PATCH")])
async def test_a_wrong_method_is_405_with_those_that_are_taken(open_port: OpenPorts, path: str, method: str) -> None:
    answer = await ask(await data_port(open_port), get(path, method=method))
    assert (answer.status, answer.error["code"]) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "GET, HEAD"


async def test_every_answer_has_a_request_id(open_port: OpenPorts) -> None:
    port = await data_port(open_port)
    for path in ("/health", "/v1/models", "/none", "/v1/models/none"):
        assert (await ask(port, get(path, "x-request-id: mine"))).headers["x-request-id"] == "mine"
        assert (await ask(port, get(path))).headers["x-request-id"].startswith("req-")


@pytest.mark.parametrize("error", [ZeroDivisionError("secret"), KeyError("secret")])
async def test_a_fault_of_our_own_is_a_500_that_says_no_more(
    open_port: OpenPorts, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await ask(await data_port(open_port, Shown(error=error)), get("/v1/models"))
    assert (answer.status, answer.error["type"]) == (500, "server_error")
    assert b"secret" not in answer.payload
    assert "secret" in caplog.text


async def test_an_error_of_ours_keeps_its_words(open_port: OpenPorts) -> None:
    answer = await ask(await data_port(open_port, Shown(error=PointsmanError("Ours."))), get("/v1/models"))
    assert (answer.status, answer.error["message"]) == (500, "Ours.")


async def test_pages_share_a_connection_with_what_comes_after(open_port: OpenPorts) -> None:
    port = await data_port(open_port)
    client = await port.connect()
    client.send(get("/health") + get("/none") + get("/v1/models", method="POST") + get("/version"))
    assert [(await client.answer(i)).status for i in range(4)] == [200, 404, 405, 200]


def test_the_routes_are_those_of_the_readme() -> None:
    def paths(app: web.Application) -> set[str]:
        return {resource.canonical for resource in app.router.resources()}

    views = Shown().views()
    assert paths(data_routes(views)) == {"/health", "/livez", "/readyz", "/version", "/v1/models", "/v1/models/{id}"}
    assert paths(admin_routes(views)) == {
        "/health",
        "/readyz",
        "/metrics",
        "/admin/adapters",
        "/admin/replicas",
        "/admin/replicas/{id}/drain",
        "/admin/replicas/{id}/undrain",
    }
