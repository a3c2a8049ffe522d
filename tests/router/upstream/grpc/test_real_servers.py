"""Against gRPC's own server: long prompts, TLS, deadlines, cancels, many calls at once."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from pointsman.v1 import common_pb2, engine_pb2, engine_pb2_grpc
from router.core import Attempt, Pool, Replica
from router.errors import ConnectFailed
from router.spec import ReplicaSpec
from router.upstream.grpc.pool import GrpcUpstream
from tests.router.jobs.rig import patiently
from tests.router.nouns import FakeClock
from tests.router.upstream.fakes import FakeSink
from tests.router.upstream.grpc.plans import POOL, planner


class Engine(engine_pb2_grpc.EngineServicer):
    """Counts to `max_tokens`; to a prompt that ends with 0 it says nothing, for ever, and one that ends with 1 it
    refuses."""

    def __init__(self) -> None:
        self.left_s: list[float | None] = []
        self.num_cancelled = 0

    async def Generate(self, asked: engine_pb2.GenerateRequest, context: Any) -> None:
        self.left_s.append(context.time_remaining())
        try:
            if asked.token_ids[-1] == 0:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        if asked.token_ids[-1] == 1:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "zu viel, später")
        for number in range(asked.sampling.max_tokens):
            await context.write(engine_pb2.GenerateEvent(text=f"{number} "))
        usage = {"prompt_tokens": len(asked.token_ids), "output_tokens": asked.sampling.max_tokens}
        reason = common_pb2.FINISH_REASON_LENGTH
        await context.write(engine_pb2.GenerateEvent(finish_reason=reason, usage=usage))


@asynccontextmanager
async def serving(engine: Engine, credentials: grpc.ServerCredentials | None = None) -> AsyncIterator[str]:
    server = grpc.aio.server()
    engine_pb2_grpc.add_EngineServicer_to_server(engine, server)
    if credentials is None:
        port, scheme = server.add_insecure_port("127.0.0.1:0"), "grpc"
    else:
        port, scheme = server.add_secure_port("127.0.0.1:0", credentials), "grpcs"
    await server.start()
    try:
        yield f"{scheme}://127.0.0.1:{port}"
    finally:
        await server.stop(None)


def attempt(url: str, prompt: list[int], max_tokens: int, deadline: float | None = None) -> Attempt:
    body = msgspec.json.encode({"model": "m", "prompt": prompt, "max_tokens": max_tokens})
    replica = Replica(ReplicaSpec(url), pool=POOL)
    return Attempt(replica, "r", "/v1/completions", (), body, 30.0, 60.0, 60.0, deadline)


async def said(upstream: GrpcUpstream, asked: Attempt) -> Any:
    sink = FakeSink()
    await upstream.open(asked, sink)
    await patiently(lambda: sink.ends)
    assert sink.ends == ["end"]
    return json.loads(sink.body)


async def test_many_long_prompts_at_once_are_all_answered() -> None:
    upstream = GrpcUpstream(FakeClock(), planner())
    async with serving(Engine()) as url:
        asking = [said(upstream, attempt(url, [7] * (900 if number % 2 else 1), 50)) for number in range(40)]
        for body in await asyncio.gather(*asking):
            assert body["choices"][0]["text"] == "".join(f"{number} " for number in range(50))
            assert body["usage"]["completion_tokens"] == 50
        assert upstream.num_calls == 0
        await upstream.close()


async def test_a_request_larger_than_the_servers_window_is_heard_whole() -> None:
    upstream, wide = GrpcUpstream(FakeClock(), planner()), 400_000
    async with serving(Engine()) as url:
        asked = attempt(url, [2**31] * wide, 3)
        asked.replica.pool = Pool("m")
        body = await said(upstream, asked)
        await upstream.close()
    assert body["usage"]["prompt_tokens"] == wide


async def test_a_refusal_comes_in_the_servers_words() -> None:
    upstream, sink = GrpcUpstream(FakeClock(), planner()), FakeSink()
    async with serving(Engine()) as url:
        await upstream.open(attempt(url, [1], 3), sink)
        await patiently(lambda: sink.ends)
        await upstream.close()
    assert (sink.status, json.loads(sink.body)["error"]["message"]) == (429, "zu viel, später")


async def test_the_server_hears_of_the_deadline_and_of_an_abort() -> None:
    engine, clock = Engine(), FakeClock()
    upstream = GrpcUpstream(clock, planner())
    async with serving(engine) as url:
        exchange = await upstream.open(attempt(url, [0], 3, clock() + 500.0), FakeSink())
        await patiently(lambda: engine.left_s)
        [left_s] = engine.left_s
        assert left_s is not None
        assert 400.0 < left_s <= 501.0
        exchange.abort()
        await patiently(lambda: engine.num_cancelled)
        await upstream.close()


async def test_a_server_that_stops_is_an_error_of_the_replica() -> None:
    upstream, sink = GrpcUpstream(FakeClock(), planner()), FakeSink()
    engine = Engine()
    async with serving(engine) as url:
        await upstream.open(attempt(url, [0], 3), sink)
        await patiently(lambda: engine.left_s)
    await patiently(lambda: sink.ends)
    assert sink.error is not None or sink.status == 503
    await upstream.close()


async def test_tls_is_spoken_with_h2_agreed_on(tmp_path: Path) -> None:
    words = "req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=a -addext"
    command = ["openssl", *words.split(), "subjectAltName=IP:127.0.0.1"]
    await asyncio.to_thread(subprocess.run, command, cwd=tmp_path, check=True, capture_output=True)
    pairs = [((tmp_path / "key.pem").read_bytes(), (tmp_path / "cert.pem").read_bytes())]
    upstream = GrpcUpstream(FakeClock(), planner())
    async with serving(Engine(), grpc.ssl_server_credentials(pairs)) as url:
        with pytest.raises(ConnectFailed, match="cannot be reached"):
            await upstream.open(attempt(url, [7], 2), FakeSink())
        (await upstream._ssl_context()).load_verify_locations(tmp_path / "cert.pem")
        body = await said(upstream, attempt(url, [7], 2))
        await upstream.close()
    assert body["choices"][0]["text"] == "0 1 "
