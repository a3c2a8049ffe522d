"""An OpenAI server in this process that behaves, or misbehaves, as it is told. Waits on events, never on time."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Behaviour = Callable[["FakeServer", web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]

MODEL = "fake-model"


@dataclass(eq=False, slots=True)
class FakeServer:
    """Answers with the behaviours of `script` in turn, then with `otherwise`."""

    url: str = ""
    script: list[Behaviour] = field(default_factory=list)
    otherwise: Behaviour | None = None
    models: Any = field(default_factory=lambda: {"object": "list", "data": [{"id": MODEL}]})
    models_status: int = 200
    models_gate: asyncio.Event | None = None
    num_lookups: int = 0
    has_metrics: bool = True
    num_running: int = 0
    num_leaked: int = 0
    most_running: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: Counter[str] = field(default_factory=Counter)
    peers: set[Any] = field(default_factory=set)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    moved: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def until(self, is_reached: Callable[[], bool]) -> None:
        """Wait until something that requests change is as wished."""
        async with self.moved:
            await self.moved.wait_for(is_reached)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        self.paths[request.path] += 1
        self.peers.add(request.transport and request.transport.get_extra_info("peername"))
        behaviour = self.script.pop(0) if self.script else (self.otherwise or whole)
        await self._count(1)
        try:
            return await behaviour(self, request, body)
        finally:
            await asyncio.shield(self._count(-1))

    async def _count(self, step: int) -> None:
        async with self.moved:
            self.num_running += step
            self.most_running = max(self.most_running, self.num_running)
            self.moved.notify_all()

    async def list_models(self, request: web.Request) -> web.Response:
        self.headers.append(dict(request.headers))
        async with self.moved:
            self.num_lookups += 1
            self.moved.notify_all()
        if self.models_gate is not None:
            await self.models_gate.wait()
        return web.json_response(self.models, status=self.models_status)

    async def metrics(self, request: web.Request) -> web.Response:
        if not self.has_metrics:
            raise web.HTTPNotFound
        num_shown = self.num_running + self.num_leaked
        return web.Response(
            text="# TYPE vllm:num_requests_running gauge\n"
            f'vllm:num_requests_running{{engine="0"}} {num_shown}.0\n'
            f'vllm:num_requests_waiting{{engine="0"}} 0.0\n'
            f'vllm:kv_cache_usage_perc{{engine="0"}} {num_shown * 0.125}\n'
        )


@asynccontextmanager
async def serving(server: FakeServer) -> AsyncIterator[FakeServer]:
    """Listen on a free port of the loopback while the context lasts."""
    app = web.Application()
    app.router.add_get("/v1/models", server.list_models)
    app.router.add_get("/metrics", server.metrics)
    app.router.add_post("/v1/chat/completions", server.answer)
    app.router.add_post("/v1/completions", server.answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    server.url = f"http://{host}:{port}"
    try:
        yield server
    finally:
        await runner.cleanup()


def chunk(text: str = "", finish: str | None = None, **more: Any) -> bytes:
    """One event of a stream that suits both routes."""
    choice = {"index": 0, "delta": {"content": text}, "text": text, "finish_reason": finish}
    return event({"choices": [choice], **more})


def event(payload: Any) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


USAGE = {"prompt_tokens": 40, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 16}}
RUN_S = 0.4
DONE = b"data: [DONE]\n\n"


async def _stream(request: web.Request, *events: bytes, ends: bool = True) -> web.StreamResponse:
    headers = {"content-type": "text/event-stream", "x-pointsman-replica": "r1"}
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    for payload in events:
        await response.write(payload)
    if not ends and request.transport is not None:
        request.transport.close()
    return response


async def whole(server: FakeServer, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """A right answer of three tokens, streamed or not, as asked."""
    if not body["stream"]:
        choice = {"message": {"content": "one two three"}, "text": "one two three", "finish_reason": "stop"}
        return web.json_response({"choices": [choice], "usage": USAGE})
    usage = event({"choices": [], "usage": USAGE})
    return await _stream(request, chunk("one"), chunk(" two"), chunk(" three", "stop"), usage, DONE)


async def without_usage(server: FakeServer, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return await _stream(request, chunk("one"), chunk(" two", "stop"), DONE)


async def in_band_error(server: FakeServer, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return await _stream(request, chunk("one"), event({"error": {"message": "replica died"}}), DONE)


async def without_finish(server: FakeServer, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return await _stream(request, chunk("one"), DONE)


async def without_done(server: FakeServer, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return await _stream(request, chunk("one", "stop"))


async def cut(server: FakeServer, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return await _stream(request, chunk("one"), ends=False)


async def hung_up(server: FakeServer, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Close without a word."""
    assert request.transport is not None
    request.transport.close()
    return web.Response()


async def too_many(server: FakeServer, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return web.json_response({"error": {"message": "slow down", "code": "rate_limit_exceeded"}}, status=429)


async def not_a_stream(server: FakeServer, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return web.json_response({"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]})


async def gated(server: FakeServer, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Answer once the test opens the gate."""
    await server.gate.wait()
    return await whole(server, request, body)


async def slower_than_the_run(server: FakeServer, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Answer when a run of RUN_S seconds is over: the time that passes is the point."""
    await asyncio.sleep(1.2 * RUN_S)
    return await whole(server, request, body)


async def endless(server: FakeServer, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """One token, and then nothing until the client goes away."""
    response = await _stream(request, chunk("one"))
    await asyncio.Event().wait()
    return response


async def withheld_end(server: FakeServer, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """A right answer whose body does not end after its end mark."""
    response = await whole(server, request, body)
    await asyncio.Event().wait()
    return response
