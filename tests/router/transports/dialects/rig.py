"""A data port on loopback that speaks other APIs' forms, over a real station whose replicas are in memory, and a client
that reads whole answers and events."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

from router.core import Headers, Request, Standing, Surface
from router.transports import http
from router.transports.asking import new_request
from router.transports.dialects.desk import Dialects
from router.transports.responses.desk import ResponseDesk
from router.transports.responses.following import Following
from router.transports.responses.here import AnyArchive, ArchiveHere
from router.transports.responses.pages import add_response_routes
from router.transports.responses.runs import Runs
from router.transports.web import openai_errors
from tests.contracts.hostile import DONE
from tests.fakes import FakeExchange, FakeUpstream, Station, specs_of
from tests.router.jobs.rig import patiently

USAGE = {"prompt_tokens": 12, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8}}


@dataclass(eq=False)
class Rig:
    station: Station
    upstream: FakeUpstream
    responses: ResponseDesk
    session: aiohttp.ClientSession
    refused: list[int] = field(default_factory=list)

    def ask(self, path: str, body: object, **headers: str) -> "asyncio.Task[Answer]":
        return asyncio.ensure_future(self.fetch("POST", path, body, **headers))

    async def fetch(self, method: str, path: str, body: object = None, **headers: str) -> "Answer":
        async with self.session.request(method, path, json=body, headers=headers) as response:
            return Answer(response.status, dict(response.headers), await response.read())

    async def exchange(self, number: int = 0) -> FakeExchange:
        await patiently(lambda: len(self.upstream.exchanges) > number)
        return self.upstream.exchanges[number]

    async def sent(self, number: int = 0) -> dict[str, Any]:
        """The chat body that the replica of that attempt got."""
        body: dict[str, Any] = json.loads((await self.exchange(number)).attempt.body)
        return body


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found

    @property
    def events(self) -> list[dict[str, Any]]:
        """The data of each event, whose name must be its type."""
        found = []
        for text in self.body.decode().split("\n\n"):
            if text and not text.startswith(":"):
                name, data = text.split("\n")
                found.append(json.loads(data.removeprefix("data: ")))
                assert name == f"event: {found[-1]['type']}"
        return found


@asynccontextmanager
async def open_rig(archive: AnyArchive | None = None, **settings: object) -> AsyncIterator[Rig]:
    """Ends with every count at zero."""
    upstream = FakeUpstream()
    station = Station(upstream, specs_of("ab"), **settings)  # type: ignore[arg-type]
    refused: list[int] = []

    async def count(request: Request) -> int:
        return len(request.messages or ())

    responses = new_desk(station, archive or ArchiveHere(station.clock))
    dialects = Dialects(station.proxy.begin, count, responses, station.clock, 600.0, refused.append)
    routes = web.Application(middlewares=[openai_errors])
    add_response_routes(routes, responses)
    runner = web.AppRunner(routes, handler_cancellation=True, access_log=None)
    await runner.setup()
    assert runner.server is not None
    port = http.DataPort(station.proxy.begin, runner.server, refused.append, station.clock, http.PortLimits())
    port.dialects = dialects
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: http.ClientConnection(port), "127.0.0.1", 0)
    base = "http://{}:{}".format(*server.sockets[0].getsockname())
    try:
        async with aiohttp.ClientSession(base) as session:
            yield Rig(station, upstream, responses, session, refused)
    finally:
        server.close()
        await port.close()
        await responses.runs.close()
        await patiently(lambda: not station.left_over and not port.connections)
        await runner.cleanup()


def new_desk(station: Station, archive: AnyArchive) -> ResponseDesk:
    """Tenants by the client's word: its credential is their name."""

    def ask(headers: Headers, body: bytes, standing: Standing | None) -> Request:
        now = station.clock()
        return new_request(Surface.CHAT, body, headers, now, now + 600.0, standing)

    def owner(headers: Headers) -> str:
        return dict(headers).get("authorization", "Bearer default").removeprefix("Bearer ")

    runs = Runs(archive, station.proxy.begin, ask, station.clock, lambda: station.gate.is_draining)
    runs._settled_at = station.clock()  # who has just begun would take nothing yet
    following = Following(archive, runs.bell, station.clock)
    return ResponseDesk(station.proxy.begin, archive, runs, following, station.clock, owner)


def whole(message: dict[str, Any], finish: str = "stop") -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    return json.dumps({"id": "x", "model": "m-1", "choices": [choice], "usage": USAGE}).encode()


def stream(*deltas: dict[str, Any], finish: str = "stop") -> bytes:
    """A whole stream of a chat engine."""
    chunks: list[dict[str, Any]] = [{"choices": [{"delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({"choices": [{"delta": {}, "finish_reason": finish}]})
    chunks.append({"choices": [], "usage": USAGE})
    return b"".join(b"data: %b\n\n" % json.dumps({"model": "m-1", **each}).encode() for each in chunks) + DONE


def calls(*pieces: tuple[int, str | None, str | None, str]) -> list[dict[str, Any]]:
    """Deltas of tool calls: index, id, name, arguments."""
    return [
        {"tool_calls": [{"index": index, "id": id, "function": {"name": name, "arguments": arguments}}]}
        for index, id, name, arguments in pieces
    ]
