"""A replica of model `m` on loopback, in a thread of the test's process: it answers at the pace that a request's `user`
field says (seconds between tokens), and remembers what was open at once. Knows OpenAI's wire; computes nothing.
"""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web


class FakeReplica:
    """`num_open` requests are being answered now, `most_open` were at once; `prompts` are the bodies that came."""

    def __init__(self) -> None:
        self.port = 0
        self.num_open = self.most_open = self.num_served = 0
        self.is_well = True
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._is_open = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def id(self) -> str:
        return f"127.0.0.1:{self.port}"

    def run(self) -> None:
        self._loop.run_until_complete(self._run())
        self._loop.close()

    def wait_open(self) -> None:
        assert self._is_open.wait(20)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)

    async def _run(self) -> None:
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = site.port
        self._is_open.set()
        await self._stop.wait()
        await runner.cleanup()

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self.is_well else 500)

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        try:
            if not body.get("stream"):
                message = {"role": "assistant", "content": body["messages"][0]["content"]}
                await asyncio.sleep(float(body.get("user", "0")))
                return web.json_response({"id": "x", "choices": [{"index": 0, "message": message}]})
            return await self._answer(request, body["max_tokens"], float(body.get("user", "0")))
        finally:
            self.num_open -= 1
            self.num_served += 1

    async def _answer(self, request: web.Request, num_tokens: int, pace_s: float) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for number in range(num_tokens):
            await asyncio.sleep(pace_s)
            await response.write(_event({"id": "x", "choices": [{"index": 0, "delta": {"content": f"{number} "}}]}))
        await response.write(_event({"id": "x", "choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}))
        await response.write(b"data: [DONE]\n\n")
        return response


def _event(fields: object) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


@contextmanager
def fake_replicas(number: int) -> Iterator[list[FakeReplica]]:
    replicas = [FakeReplica() for _ in range(number)]
    threads = [threading.Thread(target=replica.run) for replica in replicas]
    for thread in threads:
        thread.start()
    try:
        for replica in replicas:
            replica.wait_open()
        yield replicas
    finally:
        for replica in replicas:
            replica.stop()
        for thread in threads:
            thread.join()
