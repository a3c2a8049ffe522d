"""An outside provider as a replica: what it is asked, what it is told, and for whom it stands in. Over the router's own
registry and wire, and a provider on loopback."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from router.app import Router
from router.config import Settings
from router.transports.http import ClientConnection
from tests.fakes import until
from tests.router.served import nobody, served

CHAT = {"model": "big", "temperature": 0.50, "messages": [{"role": "user", "content": "hi"}]}


@dataclass(eq=False)
class Provider:
    """Answers chats under `/compat/v9`; `asked` are the paths of all requests, whatever they are."""

    status: int = 200
    asked: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        return app

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked.append(f"{request.method} {request.path}")
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        self.bodies.append(await request.read())
        headers = {"openai-organization": "org-ours", "set-cookie": "a=b", "x-ratelimit-remaining": "5"}
        if self.status != 200:
            return web.json_response({"error": {"message": "sk-ours is wrong"}}, status=self.status, headers=headers)
        message = {"role": "assistant", "content": "hello"}
        return web.json_response({"id": "x", "choices": [{"index": 0, "message": message}]}, headers=headers)


@asynccontextmanager
async def open_router(tmp_path: Path, *replicas: str, **settings: Any) -> AsyncIterator[aiohttp.ClientSession]:
    """A router's data port, and its watch over these replicas."""
    named: dict[str, Any] = {
        "state_dir": str(tmp_path),
        "redis": "none",
        "queue_timeout_s": 20.0,
        "probe_interval_s": 0.01,
    }
    router = Router(Settings(replica=replicas, **(named | settings)), logging.getLogger("tests.providers"))
    async with router._open_port() as port:
        watching = asyncio.create_task(router._watch_replicas())
        server = await asyncio.get_running_loop().create_server(lambda: ClientConnection(port), "127.0.0.1", 0)
        try:
            base = "http://{}:{}".format(*server.sockets[0].getsockname())
            async with aiohttp.ClientSession(base) as session:
                yield session
        finally:
            server.close()
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await until(lambda: not port.connections)


async def post(session: aiohttp.ClientSession, body: object, **headers: str) -> tuple[int, dict[str, str], Any]:
    async with session.post("/v1/chat/completions", json=body, headers=headers) as response:
        return response.status, dict(response.headers), await response.json()


async def test_a_provider_is_told_the_request_and_its_key_and_asked_nothing_else(tmp_path: Path) -> None:
    provider = Provider()
    async with served(provider.app()) as url:
        replica = f"{url}/compat/v9,api_key=sk-ours,models=big+org/small"
        async with open_router(tmp_path, replica) as session:
            status, told, answer = await post(
                session,
                CHAT,
                authorization="Bearer sk-client",
                **{"x-session-id": "s", "openai-organization": "org-client", "cookie": "c=d"},
            )
            async with session.get("/v1/models") as response:
                listed = (await response.json())["data"]
    assert (status, answer["choices"][0]["message"]["content"]) == (200, "hello")
    assert provider.asked == ["POST /compat/v9/chat/completions"], "no probe, no list of models, no page of metrics"
    assert json.loads(provider.bodies[0]) == CHAT
    heard = provider.headers[0]
    assert heard["authorization"] == "Bearer sk-ours"
    assert not {"x-session-id", "openai-organization", "cookie", "x-pointsman-replica"} & set(heard)
    lowered = {name.lower(): value for name, value in told.items()}
    assert not {"openai-organization", "set-cookie"} & set(lowered)
    assert lowered["x-ratelimit-remaining"] == "5"
    assert [(each["id"], each["owned_by"]) for each in listed] == [("big", "127.0.0.1"), ("org/small", "127.0.0.1")]


async def test_a_provider_stands_in_for_a_model_of_ours_under_its_own_name(tmp_path: Path) -> None:
    """The body is spliced: of all values only the model's changes. `llama` has one replica, at which nobody listens."""
    provider, body = (
        Provider(),
        b'{"model":"llama","temperature":0.50,"messages":[{"role":"user","content":"\\u00e9"}]}',
    )
    async with served(provider.app()) as url:
        replica = f"{url}/v1,api_key=sk-ours,models=gpt-9"
        names = {"fallback": ("llama=gpt-9",), "model_alias": ("chat=llama",)}
        async with open_router(tmp_path, replica, **names) as session:
            async with session.post("/v1/chat/completions", data=body) as response:
                assert response.status == 200
            async with session.post("/v1/chat/completions", data=body.replace(b"llama", b"chat")) as response:
                assert response.status == 200
    assert provider.bodies == [body.replace(b"llama", b"gpt-9")] * 2
    assert provider.asked == ["POST /v1/chat/completions"] * 2


async def test_a_provider_stands_in_for_a_replica_that_cannot_be_reached(tmp_path: Path) -> None:
    provider = Provider()
    async with served(provider.app()) as url:
        replicas = (f"{nobody()}/v1,models=llama", f"{url}/v1,models=gpt-9")
        async with open_router(tmp_path, *replicas, fallback=("llama=gpt-9",)) as session:
            status, told, _ = await post(session, CHAT | {"model": "llama"})
    assert status == 200
    assert told["x-pointsman-replica"] == f"{url.removeprefix('http://')}/v1"
    assert json.loads(provider.bodies[0])["model"] == "gpt-9"


async def test_a_provider_stands_in_at_once_for_a_model_all_of_whose_replicas_are_lost(tmp_path: Path) -> None:
    """Nobody waits for their return: a request is answered long before the time that it may wait is over."""
    provider, engine = Provider(), web.Application()
    engine.router.add_get("/health", _well)
    engine.router.add_get("/v1/models", _llama)
    async with served(provider.app()) as url, contextlib.AsyncExitStack() as life:
        replicas = (await life.enter_async_context(served(engine)), f"{url}/v1,models=gpt-9")
        waits = {"queue_timeout_s": 500.0, "fallback": ("llama=gpt-9",)}
        async with open_router(tmp_path, *replicas, **waits) as session:
            await _until_listed(session, "llama")
            await life.aclose()
            async with asyncio.timeout(60):
                for _ in range(3):
                    status, _, _ = await post(session, CHAT | {"model": "llama"})
                    assert status == 200
    assert {json.loads(body)["model"] for body in provider.bodies} == {"gpt-9"}


async def _well(_: web.Request) -> web.Response:
    return web.Response()


async def _llama(_: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": [{"id": "llama", "object": "model"}]})


async def _until_listed(session: aiohttp.ClientSession, model: str) -> None:
    async with asyncio.timeout(30):
        while True:
            async with session.get("/v1/models") as response:
                if model in {each["id"] for each in (await response.json())["data"]}:
                    return
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(("status", "told"), [(401, 502), (403, 403), (400, 400), (429, 429)])
async def test_that_our_own_key_is_wrong_is_no_fault_of_the_client(tmp_path: Path, status: int, told: int) -> None:
    provider = Provider(status)
    async with (
        served(provider.app()) as url,
        open_router(tmp_path, f"{url}/v1,api_key=sk-ours,models=big") as session,
    ):
        answered, _, answer = await post(session, CHAT)
    assert answered == told
    if status == 401:
        assert (answer["error"]["code"], "sk-ours" in str(answer)) == ("replica_key_refused", False)


async def test_a_provider_streams(tmp_path: Path) -> None:
    events = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: [DONE]\n\n'

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(events)
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    async with (
        served(app) as url,
        open_router(tmp_path, f"{url}/v1,models=big") as session,
        session.post("/v1/chat/completions", json=CHAT | {"stream": True}) as response,
    ):
        assert await response.read() == events
