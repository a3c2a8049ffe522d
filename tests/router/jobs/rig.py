"""The room of jobs over a real Redis, a real station whose replicas are in memory, and its routes on loopback."""

import asyncio
import contextlib
import ipaddress
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from router.admission.callers import Caller
from router.jobs.addresses import Reach
from router.jobs.batches import BatchBook, BatchRunner
from router.jobs.book import JobBook
from router.jobs.files import Shelf
from router.jobs.hooks import HookSender
from router.jobs.operating import add_operator_routes
from router.jobs.pages import JobPages, add_job_routes
from router.jobs.runner import JobRunner
from router.jobs.secrets import SecretBook
from router.jobs.states import Job
from router.store.connection import Store
from router.transports.keypages import CALLER
from router.transports.web import openai_errors
from tests.fakes import FakeExchange, FakeUpstream, Station, specs_of, until

SECRET = b"s" * 32
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
PATIENCE_S = 20.0


@dataclass(eq=False)
class Rig:
    station: Station
    upstream: FakeUpstream
    pages: JobPages
    session: aiohttp.ClientSession
    base: str
    room: list[int]
    batch_runner: BatchRunner
    answered: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)

    async def fetch(self, method: str, path: str, body: object = None, **options: Any) -> tuple[int, dict[str, Any]]:
        async with self.session.request(method, path, json=body, **options) as response:
            text = await response.read()
            return response.status, json.loads(text) if text else {}

    async def submit(self, surface: str = "chat/completions", **fields: object) -> dict[str, Any]:
        status, job = await self.fetch("POST", f"/v1/async/{surface}", CHAT | fields)
        assert status == 202, job
        return job

    async def exchange(self, number: int = 0) -> FakeExchange:
        await patiently(lambda: len(self.upstream.exchanges) > number)
        return self.upstream.exchanges[number]

    async def ended(self, id: str) -> Job:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                job = await self.pages.book.find(id)
                if job is not None and job.has_ended:
                    return job
                await asyncio.sleep(0.02)

    async def batch_over(self, id: str) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                _, batch = await self.fetch("GET", f"/v1/batches/{id}")
                if batch["status"] in ("completed", "failed", "expired", "cancelled"):
                    return batch
                await asyncio.sleep(0.05)

    async def upload(self, *lines: object, purpose: str = "batch") -> dict[str, Any]:
        text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
        form = aiohttp.FormData()
        form.add_field("purpose", purpose)
        form.add_field("file", text.encode(), filename="in.jsonl")
        async with self.session.post("/v1/files", data=form) as response:
            record: dict[str, Any] = await response.json()
            assert response.status == 200, record
            return record

    async def content(self, id: str) -> list[dict[str, Any]]:
        async with self.session.get(f"/v1/files/{id}/content") as response:
            return [json.loads(line) for line in (await response.text()).splitlines()]


async def patiently(condition: Callable[[], object]) -> None:
    """For what another process must do first."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  (it does not tell us)
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def open_rig(store: Store, folder: Path, *, hooks: bool = False, answers: bool = False) -> AsyncIterator[Rig]:
    """With `answers`, replicas answer each request at once with its own words. Ends with every count at zero."""
    upstream = FakeUpstream()
    station = Station(upstream, specs_of("ab"))
    book, room = JobBook(store), [8]
    runner = JobRunner(book, station.proxy.begin, station.clock, lambda num_held: room[0] - num_held)
    reach = Reach(allowed=[ipaddress.ip_network("127.0.0.0/8")], allows_http=True)
    sender = HookSender(book, SecretBook(store, [SECRET]), reach)
    shelf = Shelf(folder, max_file_bytes=100_000, owner_bytes=250_000)
    batches = BatchBook(book)
    batch_runner = BatchRunner(batches, shelf, runner.wake, window=20)
    pages = JobPages(book, batches, shelf, runner, sender, reach)
    app = web.Application(middlewares=[openai_errors, _as_tenant])
    add_job_routes(app, pages)
    add_operator_routes(app, pages)
    web_runner = web.AppRunner(app, handler_cancellation=True)
    await web_runner.setup()
    site = web.TCPSite(web_runner, "127.0.0.1", 0)
    await site.start()
    host, port = web_runner.addresses[0]
    async with aiohttp.ClientSession(f"http://{host}:{port}") as session, asyncio.TaskGroup() as group:
        tasks = [group.create_task(runner.run()), group.create_task(batch_runner.run())]
        if hooks:
            tasks.append(group.create_task(sender.run()))
        rig = Rig(station, upstream, pages, session, f"http://{host}:{port}", room, batch_runner)
        if answers:
            tasks.append(group.create_task(_answer(rig)))
        yield rig
        for task in tasks:
            task.cancel()
    await until(lambda: not station.left_over)
    await web_runner.cleanup()


async def _answer(rig: Rig) -> None:
    while True:
        for exchange in rig.upstream.exchanges[rig.answered :]:
            rig.answered += 1
            body = json.loads(exchange.attempt.body)
            rig.bodies.append(body)
            words = body["messages"][0]["content"] if "messages" in body else body["prompt"]
            exchange.answer(400 if words == "bad" else 200, json.dumps({"said": words}).encode())
        await asyncio.sleep(0)


@web.middleware
async def _as_tenant(request: web.Request, handler: Any) -> web.StreamResponse:
    request[CALLER] = Caller(request.headers.get("x-tenant", "t"))
    response: web.StreamResponse = await handler(request)
    return response
