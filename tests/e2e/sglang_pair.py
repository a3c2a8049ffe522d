"""A prefill and a decode server that keep SGLang's handshake over real sockets, as its documentation has it: both get
the request at once, with the host and port of the prefill server's bootstrap server and a room. Neither answers before
the other is in that room: whoever asks them one after the other waits for ever. Knows the wire; computes nothing.
"""

import asyncio
import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp
from aiohttp import web

PAGE = "sglang:num_running_reqs 0\nsglang:num_queue_reqs 0\nsglang:token_usage 0.0\n"


class Pair:
    """`urls` of the prefill and of the decode server, `bootstrap_port` of the first; `asked` are their bodies."""

    def __init__(self) -> None:
        self.urls = ["", ""]
        self.bootstrap_port = 0
        self.asked: list[list[dict[str, Any]]] = [[], []]
        self._rooms: dict[int, asyncio.Event] = defaultdict(asyncio.Event)
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._is_open = threading.Event()

    def run(self) -> None:
        self._loop.run_until_complete(self._run())
        self._loop.close()

    def wait_open(self) -> None:
        assert self._is_open.wait(20)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)

    async def _run(self) -> None:
        runners = []
        for number, answer in enumerate((self._prefill, self._decode, self._bootstrap)):
            app = web.Application()
            app.router.add_get("/health", _health)
            app.router.add_get("/metrics", _metrics)
            app.router.add_get("/v1/models", self._models)
            app.router.add_post("/v1/chat/completions", answer)
            app.router.add_get("/room/{room}", self._bootstrap)
            runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            runners.append(runner)
            if number < len(self.urls):
                self.urls[number] = f"http://127.0.0.1:{site.port}"
            else:
                self.bootstrap_port = site.port
        self._is_open.set()
        await self._stop.wait()
        for runner in runners:
            await runner.cleanup()

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})

    async def _prefill(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked[0].append(body)
        async with asyncio.timeout(20):
            await self._rooms[body["bootstrap_room"]].wait()
        return web.json_response({"id": "p", "choices": [{"index": 0, "message": {"content": "not for the client"}}]})

    async def _bootstrap(self, request: web.Request) -> web.Response:
        """The decode server is in the room."""
        self._rooms[int(request.match_info["room"])].set()
        return web.json_response({})

    async def _decode(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked[1].append(body)
        where = f"http://{body['bootstrap_host']}:{body['bootstrap_port']}/room/{body['bootstrap_room']}"
        async with aiohttp.ClientSession() as session, session.get(where, raise_for_status=True):
            message = {"role": "assistant", "content": "from the second"}
        return web.json_response({"id": "d", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})


async def _health(_: web.Request) -> web.Response:
    return web.Response()


async def _metrics(_: web.Request) -> web.Response:
    return web.Response(text=PAGE)


@contextmanager
def sglang_pair() -> Iterator[Pair]:
    pair = Pair()
    thread = threading.Thread(target=pair.run)
    thread.start()
    try:
        pair.wait_open()
        yield pair
    finally:
        pair.stop()
        thread.join()


def without_room(body: dict[str, Any]) -> str:
    """What the client sent."""
    return json.dumps({name: value for name, value in body.items() if not name.startswith("bootstrap_")})
