"""The questions of the replicas room to real gRPC servers of both contracts, and what becomes of their answers."""

import asyncio
import io
import json
import socket
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from pointsman.v1 import engine_pb2, engine_pb2_grpc, vllm_engine_pb2, vllm_engine_pb2_grpc
from router.errors import BadAnswer, UpstreamTimeout
from router.prefix.source import TokenizerSource
from router.replicas.fetch import Answer, Connections, ConnectRefused, fetch, open_session
from router.replicas.health import probe
from router.replicas.identify import identify
from router.replicas.load import find_page, parse_block_size, parse_engine, parse_load, parse_num_blocks
from router.replicas.waking import is_asleep
from router.spec import ReplicaSpec

TOKENIZER = {"tokenizer": {"model": {}}, "chat_template": "t", "bos_token": "b", "eos_token": "e"}


class Engine(engine_pb2_grpc.EngineServicer):
    """Ours, as far as it is asked."""

    def __init__(self) -> None:
        self.orders: list[object] = []
        self.keys: list[str | None] = []
        self.is_asleep = False

    async def Info(self, asked: engine_pb2.InfoRequest, context: Any) -> engine_pb2.InfoReply:
        self.keys.append(dict(context.invocation_metadata()).get("authorization"))
        return engine_pb2.InfoReply(
            model="m", max_model_len=512, block_size=16, adapters=["lora"], is_asleep=self.is_asleep
        )

    async def Load(self, asked: engine_pb2.LoadRequest, context: Any) -> AsyncIterator[engine_pb2.LoadReport]:
        yield engine_pb2.LoadReport(
            running=3, waiting=2, queued_tokens=70, used_blocks=5, total_blocks=20, block_size=16
        )

    async def Tokenizer(
        self, asked: engine_pb2.TokenizerRequest, context: Any
    ) -> AsyncIterator[engine_pb2.TokenizerPart]:
        data = json.dumps({**TOKENIZER, "block_size": 16}).encode()
        yield engine_pb2.TokenizerPart(json=data[:10])
        yield engine_pb2.TokenizerPart(json=data[10:])

    async def LoadAdapter(self, asked: engine_pb2.LoadAdapterRequest, context: Any) -> engine_pb2.LoadAdapterReply:
        if asked.path == "/nowhere":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no adapter there")
        self.orders.append((asked.name, asked.path))
        return engine_pb2.LoadAdapterReply()

    async def UnloadAdapter(
        self, asked: engine_pb2.UnloadAdapterRequest, context: Any
    ) -> engine_pb2.UnloadAdapterReply:
        self.orders.append(asked.name)
        return engine_pb2.UnloadAdapterReply()

    async def Wake(self, asked: engine_pb2.WakeRequest, context: Any) -> engine_pb2.WakeReply:
        self.orders.append("wake")
        return engine_pb2.WakeReply()


class Bare(engine_pb2_grpc.EngineServicer):
    """A runtime of one's own: Info, and nothing else."""

    async def Info(self, asked: engine_pb2.InfoRequest, context: Any) -> engine_pb2.InfoReply:
        return engine_pb2.InfoReply(model="own", max_model_len=64)


class Vllm(vllm_engine_pb2_grpc.VllmEngineServicer):
    """Answers as vLLM 0.32 was recorded to."""

    async def GetModelInfo(self, asked: Any, context: Any) -> Any:
        recorded = "0a0c2f746d702f736d6f6c6c6d321001188008208080033207736d6f6c6c6d323a0c2f746d702f736d6f6c6c6d32"
        return vllm_engine_pb2.GetModelInfoResponse.FromString(bytes.fromhex(recorded))

    async def GetServerInfo(self, asked: Any, context: Any) -> Any:
        return vllm_engine_pb2.GetServerInfoResponse(data_parallel_size=1, block_size=128)

    async def GetLoads(self, asked: Any, context: Any) -> Any:
        load = {"num_running_reqs": 4, "num_waiting_reqs": 1, "token_usage": 0.25, "max_total_num_tokens": 23296}
        return vllm_engine_pb2.GetLoadsResponse(loads=[load])

    async def GetTokenizer(self, asked: Any, context: Any) -> AsyncIterator[Any]:
        packed = io.BytesIO()
        config = {"bos_token": {"content": "b"}, "eos_token": "e", "chat_template": "t"}
        with zipfile.ZipFile(packed, "w") as files:
            files.writestr("tokenizer.json", json.dumps({"model": {}}))
            files.writestr("tokenizer_config.json", json.dumps(config))
        yield vllm_engine_pb2.GetTokenizerChunk(data=packed.getvalue()[:50])
        yield vllm_engine_pb2.GetTokenizerChunk(data=packed.getvalue()[50:], sha256="x")


@asynccontextmanager
async def serving(servicer: Any, *, has_health: bool = True) -> AsyncIterator[tuple[ReplicaSpec, Any]]:
    """Where it serves, and its health checks."""
    server, checks = grpc.aio.server(), health.aio.HealthServicer()
    if isinstance(servicer, Vllm):
        vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server(servicer, server)
    else:
        engine_pb2_grpc.add_EngineServicer_to_server(servicer, server)
    if has_health:
        health_pb2_grpc.add_HealthServicer_to_server(checks, server)
        await checks.set("", health_pb2.HealthCheckResponse.SERVING)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield ReplicaSpec(f"grpc://127.0.0.1:{port}", api_key="k"), checks
    finally:
        await server.stop(None)


async def asked(spec: ReplicaSpec, path: str, order: object = None) -> Answer:
    async with open_session() as session:
        return await fetch(session, spec, path, 30.0, None if order is None else json.dumps(order).encode())


async def test_our_engine_says_what_it_serves_and_hands_out_its_tokenizer() -> None:
    engine = Engine()
    async with serving(engine) as (spec, _), open_session() as session:
        await probe(session, spec, 30.0)
        identity, document = await identify(session, spec, 30.0)
    assert (identity.models, identity.adapters) == (("m",), frozenset({"lora"}))
    assert (identity.block_size, identity.max_model_len) == (16, 512)
    assert document is not None
    source = TokenizerSource.from_served(document)
    assert (source.chat_template, source.bos_token, source.eos_token) == ("t", "b", "e")
    assert set(engine.keys) == {"Bearer k"}


async def test_our_engines_load_reads_as_its_metrics_do() -> None:
    async with serving(Engine()) as (spec, _), open_session() as session:
        found = await find_page(session, spec, 30.0)
    assert found is not None
    path, page = found
    load = parse_load(page, 1.0)
    assert load is not None
    assert (path, load.running, load.waiting, load.kv_used_ratio, load.queued_tokens) == ("/metrics", 3, 2, 0.25, 70)
    assert (parse_engine(page), parse_block_size(page), parse_num_blocks(page)) == ("pointsman", 16, 20)


async def test_vllm_is_known_by_what_it_answers() -> None:
    async with serving(Vllm()) as (spec, _), open_session() as session:
        await probe(session, spec, 30.0)
        identity, document = await identify(session, spec, 30.0)
        found = await find_page(session, spec, 30.0)
        assert await is_asleep(session, spec, 30.0) is None
    assert (identity.models, identity.adapters, identity.max_model_len) == (("smollm2",), frozenset(), 1024)
    assert identity.cards[0].owned_by == "vllm"
    assert document is not None
    source = TokenizerSource.from_served(document)
    assert (source.chat_template, source.bos_token, source.eos_token) == ("t", "b", "e")
    assert found is not None
    load = parse_load(found[1], 1.0)
    assert load is not None
    assert (load.running, load.waiting, load.kv_used_ratio) == (4, 1, 0.25)
    page = found[1]
    assert (parse_engine(page), parse_block_size(page), parse_num_blocks(page)) == ("vllm", 128, 182)


async def test_a_runtime_of_ones_own_need_not_have_more_than_info() -> None:
    async with serving(Bare(), has_health=False) as (spec, _), open_session() as session:
        await probe(session, spec, 30.0)
        identity, document = await identify(session, spec, 30.0)
        assert (identity.models, document) == (("own",), None)
        assert await find_page(session, spec, 30.0) is None
        assert await is_asleep(session, spec, 30.0) is False


async def test_a_replica_that_does_not_serve_is_not_well() -> None:
    async with serving(Engine()) as (spec, checks), open_session() as session:
        await checks.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
        with pytest.raises(BadAnswer):
            await probe(session, spec, 30.0)


async def test_sleep_is_seen_and_ended() -> None:
    engine = Engine()
    engine.is_asleep = True
    async with serving(engine) as (spec, _):
        async with open_session() as session:
            assert await is_asleep(session, spec, 30.0) is True
        assert (await asked(spec, "/wake_up", {})).status == 200
    assert engine.orders == ["wake"]


async def test_adapters_are_loaded_and_forgotten_and_a_refusal_is_told() -> None:
    engine = Engine()
    async with serving(engine) as (spec, _):
        assert (await asked(spec, "/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "/p"})).status == 200
        assert (await asked(spec, "/v1/unload_lora_adapter", {"lora_name": "a"})).status == 200
        refused = await asked(spec, "/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "/nowhere"})
        assert (refused.status, b"no adapter there" in refused.body) == (400, True)
        assert (await asked(spec, "/nothing/of/this/name")).status == 404
    assert engine.orders == [("a", "/p"), "a"]


async def test_a_replica_that_is_gone_is_found_again_when_it_is_back() -> None:
    async with serving(Engine()) as (spec, _):
        assert (await asked(spec, "/health")).status == 200
    async with open_session() as session:
        with pytest.raises(ConnectRefused):
            await fetch(session, spec, "/health", 30.0)
        server, checks = grpc.aio.server(), health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(checks, server)
        await checks.set("", health_pb2.HealthCheckResponse.SERVING)
        server.add_insecure_port(spec.id)
        await server.start()
        async with asyncio.timeout(30):
            assert (await fetch(session, spec, "/health", 30.0)).status == 200
        await server.stop(None)


async def test_a_replica_that_is_silent_is_given_up_after_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        spec = ReplicaSpec(f"grpc://127.0.0.1:{silent.getsockname()[1]}")
        async with open_session() as session:
            with pytest.raises(UpstreamTimeout):
                await fetch(session, spec, "/health", 0.2)


async def test_a_session_closes_the_channels_that_it_opened() -> None:
    async with serving(Engine()) as (spec, _):
        async with open_session() as session:
            await fetch(session, spec, "/health", 30.0)
            assert isinstance(session.connector, Connections)
            channel = session.connector.grpc(spec).channel
        assert channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN


async def test_a_tokenizer_that_cannot_be_read_is_the_replicas_fault() -> None:
    class Broken(Vllm):
        async def GetTokenizer(self, asked: Any, context: Any) -> AsyncIterator[Any]:
            yield vllm_engine_pb2.GetTokenizerChunk(data=b"PK no archive")

    async with serving(Broken()) as (spec, _):
        with pytest.raises(BadAnswer, match="cannot be read"):
            await asked(spec, "/pointsman/tokenizer")
