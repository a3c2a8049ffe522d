"""The router as a whole: what it loads, how its sockets are set, how it leaves."""

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

import aiohttp
import pytest
import uvloop
from aiohttp import web

from loadtest.peers.process import free_port
from router import pages
from router.app import Router
from router.config import Settings
from tests.fakes import until
from tests.router.replicas.fakes import FakeReplica

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
LOOPS: Sequence[Callable[[], asyncio.AbstractEventLoop]] = (asyncio.new_event_loop, uvloop.new_event_loop)
# What only some routers need, and takes tens of megabytes or tens of milliseconds.
SELDOM = {"grpc", "google.protobuf", "numpy", "torch", "transformers", "huggingface_hub", "h11", "rich", "matplotlib"}


class StreamingReplica(FakeReplica):
    """Its streams are at their first event until `ends` is set."""

    ends: asyncio.Event

    def routes(self) -> Sequence[web.RouteDef]:
        self.ends = asyncio.Event()
        return [web.post("/v1/chat/completions", self._stream)]

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await answer.prepare(request)
        await answer.write(b'data: {"choices": [{"index": 0, "delta": {"content": "x"}}]}\n\n')
        await self.ends.wait()
        await answer.write(b"data: [DONE]\n\n")
        return answer


@contextlib.asynccontextmanager
async def serving(replica: FakeReplica, folder: Path, stop: asyncio.Event) -> AsyncIterator[tuple[Router, str]]:
    """A router before this replica, ready; it drains once `stop` is set, at the latest at the end of the block."""
    ports = (free_port(), free_port())
    settings = Settings(replica=(replica.url,), state_dir=str(folder), redis="none", port=ports[0], admin_port=ports[1])
    router = Router(settings, logging.getLogger("tests.app"))
    is_open = asyncio.Event()
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(router.run(stop, is_open.set))
        await is_open.wait()
        await until_true(lambda: pages.readiness(router)[0])
        try:
            yield router, f"http://127.0.0.1:{settings.port}"
        finally:
            stop.set()


async def until_true(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110  (what other sockets do, no event tells)
        await asyncio.sleep(0.01)


async def test_a_router_that_leaves_is_unready_at_once_refuses_what_is_new_and_ends_what_it_has(tmp_path: Path) -> None:
    """Pitfall: draining is a fixed sleep, or aborts what is open. It ends when nothing is open, readiness first."""
    stop = asyncio.Event()
    async with (
        StreamingReplica("m") as replica,
        serving(replica, tmp_path, stop) as (router, url),
        aiohttp.ClientSession(url) as session,
        session.post("/v1/chat/completions", json=CHAT) as begun,
    ):
        await begun.content.readuntil(b"\n\n")
        stop.set()
        await until_true(lambda: router.gate.is_draining)
        async with session.get("/readyz") as said:
            assert (said.status, (await said.json())["draining"]) == (503, True)
        async with session.post("/v1/chat/completions", json=CHAT) as refused:
            assert (refused.status, (await refused.json())["error"]["code"]) == (503, "draining")
        assert router.gate.num_open == 1
        replica.ends.set()
        assert (await begun.read()).endswith(b"data: [DONE]\n\n")
    await until(lambda: router.gate.num_open == 0)


@pytest.mark.skipif(sys.platform != "linux", reason="looks at its own descriptors")
@pytest.mark.parametrize("new_loop", LOOPS)
def test_no_event_waits_for_an_acknowledgement_on_either_side(
    new_loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path
) -> None:
    """Pitfall: a first event written soon after its head waits 40 ms, by Nagle's algorithm and a delayed ACK."""

    async def look() -> None:
        async with (
            StreamingReplica("m") as replica,
            serving(replica, tmp_path, asyncio.Event()) as (router, url),
            aiohttp.ClientSession(url) as session,
            session.post("/v1/chat/completions", json=CHAT) as begun,
        ):
            await begun.content.readuntil(b"\n\n")
            to_replica = [each for each, _, peer in tcp_sockets() if peer == replica.port]
            to_clients = [each for each, own, _ in tcp_sockets() if own == router.settings.port]
            assert to_replica
            assert to_clients
            assert all((*to_replica, *to_clients))
            replica.ends.set()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(look())


def tcp_sockets() -> Iterator[tuple[bool, int, int]]:
    """Of each connection of this process: is it sent without delay, its own port and its peer's."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as found:
            if found.family == socket.AF_INET and found.type == socket.SOCK_STREAM:
                peer = found.getpeername()[1]
                yield bool(found.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)), found.getsockname()[1], peer


def test_what_only_some_routers_need_is_loaded_by_those_alone() -> None:
    code = "import sys, router.cli, router.child; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert SELDOM & set(ended.stdout.split()) == set()
