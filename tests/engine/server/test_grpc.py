"""The whole port over a real grpc.aio channel, in front of an engine that counts instead of computing."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc.error_details_pb2 import BadRequest
from google.rpc.status_pb2 import Status
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse

from engine.adapters import Adapter, AdapterError, ReadAdapter
from engine.app import build
from engine.config import EngineConfig
from engine.control import Control
from engine.loop import EngineLoop
from engine.server.grpc import SERVICE, EngineService, grpc_port
from engine.server.http import Service
from engine.tokenizer import Tokenizer
from engine.transfer import KvMemory, KvTransfer
from pointsman.blockhash import block_hashes
from pointsman.v1 import common_pb2, engine_pb2
from pointsman.v1.engine_pb2_grpc import EngineStub
from tests.engine.model.gguf_writer import write_gguf
from tests.engine.model.tiny_tokenizer import METADATA
from tests.engine.requests import BLOCK_SIZE, core
from tests.engine.server.tiny_service import served, write_tiny_model
from tests.engine.steps import Steps

CONTEXT = 64


@dataclass(eq=False)
class Port:
    """What the tests hold in their hands. `slept` are the levels that the runner was told, None for waking."""

    stub: EngineStub
    channel: grpc.aio.Channel
    servicer: EngineService
    engine: EngineLoop
    steps: Steps
    slept: list[int | None] = field(default_factory=list)


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[Port]:
    async with serving(tmp_path) as served:
        yield served


@asynccontextmanager
async def serving(tmp_path: Path) -> AsyncIterator[Port]:
    steps = Steps()
    engine = EngineLoop(core(num_slots=2), steps.run)
    tokenizer = Tokenizer.load(write_gguf(tmp_path / "tiny.gguf", METADATA, {}))
    service = Service(engine, tokenizer, "tiny", "tiny.gguf", vocab_size=100, max_model_len=CONTEXT)
    slept: list[int | None] = []
    control = Control(engine, "tiny", read, keep, slept.append, lambda: slept.append(None))
    memory = KvMemory("counted", 1, lambda blocks: memoryview(b""), lambda blocks, content: None, lambda: None)
    servicer = EngineService(service, control, KvTransfer(engine, lambda: memory, "boot"), "boot")
    engine.start()
    async with (
        grpc_port("127.0.0.1", 0, servicer) as number,
        grpc.aio.insecure_channel(f"127.0.0.1:{number}") as channel,
    ):
        yield Port(EngineStub(channel), channel, servicer, engine, steps, slept)
    engine.stop("the test is over")
    steps.allow(1000)
    assert await asyncio.to_thread(engine.join, 10)


def read(path: Path) -> ReadAdapter[None]:
    if not path.name.isalpha():
        raise AdapterError(f"{path}: no adapter")
    return ReadAdapter(rank=8, digest=1, weights=None)


def keep(adapter: Adapter, weights: None) -> None:
    pass


def asked(tokens: range | list[int] = range(1, 4), name: str = "r", **fields: Any) -> engine_pb2.GenerateRequest:
    sampling = fields.pop("sampling", {"max_tokens": 2, "temperature": 0})
    return engine_pb2.GenerateRequest(
        request_id=name, token_ids=tokens, sampling=common_pb2.Sampling(**sampling), **fields
    )


async def generate(port: Port, request: engine_pb2.GenerateRequest) -> list[engine_pb2.GenerateEvent]:
    port.steps.allow(request.sampling.max_tokens)
    return [event async for event in port.stub.Generate(request, timeout=20)]


async def refusal(call: Any) -> tuple[grpc.StatusCode, str]:
    """Status and details of a call that fails, whether it has one answer or a stream of them."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await (call.read() if hasattr(call, "read") else call)
    return caught.value.code(), caught.value.details() or ""


async def until(port: Port, condition: Callable[[], bool]) -> None:
    """Asked between steps, again and again."""
    async with asyncio.timeout(20):
        while not await port.engine.call(condition):
            pass


async def test_tokens_go_in_and_come_out_as_they_are_made(port: Port) -> None:
    stream = port.stub.Generate(asked(), timeout=20)
    port.steps.allow()
    first = await stream.read()
    assert (list(first.token_ids), first.finish_reason) == ([4], 0)
    assert (first.usage.prompt_tokens, first.usage.cached_tokens, first.usage.output_tokens) == (3, 0, 1)
    port.steps.allow()
    last = await stream.read()
    assert (list(last.token_ids), last.finish_reason) == ([5], common_pb2.FINISH_REASON_LENGTH)
    assert last.usage.output_tokens == 2
    assert await stream.read() is grpc.aio.EOF


async def test_text_is_tokenized_and_comes_back_as_text(port: Port) -> None:
    events = await generate(port, asked([], text="ab"))
    assert "".join(event.text for event in events) == "cd"
    assert events[-1].usage.prompt_tokens == 2


async def test_cached_tokens_are_told(port: Port) -> None:
    prompt = range(10, 10 + 2 * BLOCK_SIZE + 1)
    await generate(port, asked(prompt))
    assert (await generate(port, asked(prompt)))[0].usage.cached_tokens == 2 * BLOCK_SIZE


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"tokens": []}, "token_ids is empty"),
        ({"tokens": [1], "text": "a"}, "give either token_ids or text"),
        ({"tokens": [100]}, "token_ids: token id 100 is not below 100"),
        ({"tokens": [1] * CONTEXT}, "the context is 64 tokens, too few for 64 of prompt"),
        ({"sampling": {"max_tokens": 65}}, "the context is 64 tokens"),
        ({"sampling": {"temperature": -1}}, "temperature"),
        ({"sampling": {"top_p": 0}}, "top_p"),
        ({"sampling": {"stop": [""]}}, "stop"),
        ({"kv_transfer": engine_pb2.KvTransfer(do_remote_decode=True)}, "start it with --kv-transfer-port"),
        ({"kv_transfer": engine_pb2.KvTransfer(do_remote_prefill=True)}, "do_remote_prefill needs remote_engine_id"),
    ],
)
async def test_what_cannot_be_done_is_refused_by_the_fields_name(
    port: Port, fields: dict[str, Any], complaint: str
) -> None:
    status, details = await refusal(port.stub.Generate(asked(**fields), timeout=20))
    assert status is grpc.StatusCode.INVALID_ARGUMENT
    assert complaint in details


async def test_a_refusal_has_the_field_in_its_details(port: Port) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await generate(port, asked(sampling={"min_tokens": 3, "max_tokens": 2}))
    [packed] = [value for name, value in caught.value.trailing_metadata() if name == "grpc-status-details-bin"]
    violation = BadRequest()
    assert Status.FromString(packed).details[0].Unpack(violation)
    assert violation.field_violations[0].field == "min_tokens"


async def test_the_last_event_says_which_stop_ended_it(port: Port) -> None:
    last = (await generate(port, asked(sampling={"stop_token_ids": [5], "max_tokens": 9})))[-1]
    assert (last.finish_reason, last.WhichOneof("stopped_by")) == (common_pb2.FINISH_REASON_STOP, "stop_token_id")
    assert last.stop_token_id == 5
    last = (await generate(port, asked([], text="ab", sampling={"stop": ["d"], "max_tokens": 9})))[-1]
    assert (last.WhichOneof("stopped_by"), last.stop) == ("stop", "d")
    last = (await generate(port, asked()))[-1]
    assert last.WhichOneof("stopped_by") is None


async def test_the_tokenizer_is_handed_out_in_parts(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.server.grpc._PART_BYTES", 100)
    parts = [part.json async for part in port.stub.Tokenizer(engine_pb2.TokenizerRequest())]
    assert len(parts) > 1
    document = json.loads(b"".join(parts))
    assert (document["model"], document["max_model_len"]) == ("tiny", CONTEXT)
    assert {"tokenizer", "chat_template", "bos_token", "eos_token", "block_size"} <= document.keys()


async def test_an_unknown_adapter_is_not_found(port: Port) -> None:
    status, details = await refusal(port.stub.Generate(asked(adapter="blue"), timeout=20))
    assert (status, details) == (grpc.StatusCode.NOT_FOUND, "the adapter blue is not loaded")


async def test_an_id_that_is_open_is_refused_and_the_open_one_goes_on(port: Port) -> None:
    first = port.stub.Generate(asked(), timeout=20)
    await port.steps.next()
    status, _ = await refusal(port.stub.Generate(asked(), timeout=20))
    assert status is grpc.StatusCode.ALREADY_EXISTS
    port.steps.allow(2)
    assert len([event async for event in first]) == 2


async def test_a_cancelled_call_frees_its_blocks(port: Port) -> None:
    call = port.stub.Generate(asked(sampling={"max_tokens": 50}), timeout=20)
    await port.steps.next()
    call.cancel()
    port.steps.allow()
    await until(port, lambda: not port.engine.core.has_work)
    assert port.engine.core.scheduler.pool.num_used == 0


async def test_an_abort_from_any_connection_ends_the_stream_and_says_so(port: Port) -> None:
    call = port.stub.Generate(asked(sampling={"max_tokens": 50}), timeout=20)
    await port.steps.next()
    reply = await port.stub.Abort(engine_pb2.AbortRequest(request_ids=["r", "unknown"]), timeout=20)
    assert list(reply.aborted_request_ids) == ["r"]
    assert (await call.read()).finish_reason == common_pb2.FINISH_REASON_ABORT
    port.steps.allow()
    assert await call.read() is grpc.aio.EOF
    again = await port.stub.Abort(engine_pb2.AbortRequest(request_ids=["r"]), timeout=20)
    assert list(again.aborted_request_ids) == []


async def test_info_and_load_tell_what_is_there(port: Port) -> None:
    await port.stub.LoadAdapter(engine_pb2.LoadAdapterRequest(name="blue", path="/adapters/blue"), timeout=20)
    info = await port.stub.Info(engine_pb2.InfoRequest(), timeout=20)
    assert (info.model, info.max_model_len, info.vocab_size, info.block_size) == ("tiny", CONTEXT, 100, BLOCK_SIZE)
    assert (list(info.adapters), info.engine_id, info.is_asleep) == (["blue"], "boot", False)
    call = port.stub.Generate(asked(range(1, 9)), timeout=20)
    await port.steps.next()
    (report,) = [report async for report in port.stub.Load(engine_pb2.LoadRequest(), timeout=20)]
    assert (report.running, report.waiting, report.queued_tokens, report.used_blocks) == (1, 0, 8, 2)
    assert (report.total_blocks, report.block_size, list(report.adapters)) == (64, BLOCK_SIZE, ["blue"])
    call.cancel()


async def test_load_comes_again_at_each_interval(port: Port) -> None:
    stream = port.stub.Load(engine_pb2.LoadRequest(interval_ms=1), timeout=20)
    assert [(await stream.read()).total_blocks for _ in range(3)] == [64, 64, 64]
    stream.cancel()


async def test_adapters_come_and_go_with_clear_errors(port: Port) -> None:
    await port.stub.LoadAdapter(engine_pb2.LoadAdapterRequest(name="blue", path="/adapters/blue"), timeout=20)
    assert len(await generate(port, asked(adapter="blue"))) == 2
    again = port.stub.LoadAdapter(engine_pb2.LoadAdapterRequest(name="blue", path="/adapters/blue"), timeout=20)
    assert await refusal(again) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "the adapter blue is loaded already; unload it first",
    )
    broken = port.stub.LoadAdapter(engine_pb2.LoadAdapterRequest(name="red", path="/adapters/1"), timeout=20)
    assert await refusal(broken) == (grpc.StatusCode.INVALID_ARGUMENT, "/adapters/1: no adapter")
    await port.stub.UnloadAdapter(engine_pb2.UnloadAdapterRequest(name="blue"), timeout=20)
    gone = port.stub.UnloadAdapter(engine_pb2.UnloadAdapterRequest(name="blue"), timeout=20)
    assert await refusal(gone) == (grpc.StatusCode.NOT_FOUND, "the adapter blue is not loaded")


async def test_asleep_it_is_unavailable_and_awake_it_serves(port: Port) -> None:
    wrong = port.stub.Sleep(engine_pb2.SleepRequest(level=3), timeout=20)
    assert await refusal(wrong) == (grpc.StatusCode.INVALID_ARGUMENT, "level must be 1 or 2, not 3")
    await port.stub.Sleep(engine_pb2.SleepRequest(level=2), timeout=20)
    assert (await port.stub.Info(engine_pb2.InfoRequest(), timeout=20)).is_asleep
    status, details = await refusal(port.stub.Generate(asked(), timeout=20))
    assert (status, details) == (grpc.StatusCode.UNAVAILABLE, "the engine sleeps; POST /wake_up")
    await port.stub.Wake(engine_pb2.WakeRequest(), timeout=20)
    await port.stub.Wake(engine_pb2.WakeRequest(), timeout=20)
    assert port.slept == [2, None]
    assert len(await generate(port, asked())) == 2


async def test_events_begin_with_what_is_held_and_go_on_with_each_change(port: Port) -> None:
    prompt = range(10, 10 + 2 * BLOCK_SIZE + 1)
    hashes = block_hashes(prompt, BLOCK_SIZE)
    await generate(port, asked(prompt))
    stream = port.stub.Events(engine_pb2.EventsRequest(), timeout=20)
    first = await stream.read()
    assert (first.sequence, first.boot_id) == (0, "boot")
    assert (first.snapshot.block_size, first.snapshot.is_last) == (BLOCK_SIZE, True)
    assert [list(chain.block_hashes) for chain in first.snapshot.chains] == [hashes]
    longer = range(10, 10 + 3 * BLOCK_SIZE)
    await generate(port, asked(longer))
    second = await stream.read()
    assert (second.sequence, second.stored.parent_hash) == (1, hashes[-1])
    assert list(second.stored.block_hashes) == block_hashes(longer, BLOCK_SIZE)[2:]
    assert second.stored.medium == engine_pb2.MEDIUM_DEVICE
    await port.stub.Sleep(engine_pb2.SleepRequest(level=1), timeout=20)
    assert (await stream.read()).WhichOneof("event") == "cleared"
    stream.cancel()


async def test_nothing_is_recorded_for_readers_that_have_gone(port: Port) -> None:
    stream = port.stub.Events(engine_pb2.EventsRequest(), timeout=20)
    await stream.read()
    assert port.engine.core.scheduler.pool.records_changes
    stream.cancel()
    await until(port, lambda: not port.engine.core.scheduler.pool.records_changes)
    assert port.engine.listeners == []


async def test_health_and_reflection_answer(port: Port) -> None:
    health = port.channel.unary_unary(
        "/grpc.health.v1.Health/Check", HealthCheckRequest.SerializeToString, HealthCheckResponse.FromString
    )
    for name in ("", SERVICE):
        assert (await health(HealthCheckRequest(service=name), timeout=20)).status == HealthCheckResponse.SERVING
    reflect = port.channel.stream_stream(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        ServerReflectionRequest.SerializeToString,
        ServerReflectionResponse.FromString,
    )
    call = reflect(timeout=20)
    await call.write(ServerReflectionRequest(list_services=""))
    listed = await call.read()
    assert isinstance(listed, ServerReflectionResponse)
    assert SERVICE in {service.name for service in listed.list_services_response.service}
    call.cancel()


async def test_a_failed_step_is_internal_and_the_engine_goes_on(port: Port) -> None:
    call = port.stub.Generate(asked(), timeout=20)
    await port.steps.next()
    port.steps.leave.put(RuntimeError("out of luck"))
    status, details = await refusal(call)
    assert status is grpc.StatusCode.INTERNAL
    assert "out of luck" in details
    assert len(await generate(port, asked())) == 2


async def test_a_taken_port_is_told(port: Port) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="bind"):
        async with grpc_port("127.0.0.1", taken.getsockname()[1], port.servicer):
            pass


async def test_texts_become_vectors(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf")
    parts = build(EngineConfig(model=str(path), device="cpu", kv_cache_gib=0.002, threads=1))
    servicer = EngineService(parts.service, parts.control, parts.transfer, "boot")
    async with (
        served(parts.service) as client,
        grpc_port("127.0.0.1", 0, servicer) as number,
        grpc.aio.insecure_channel(f"127.0.0.1:{number}") as channel,
    ):
        texts = ["hello world", "12"]
        reply = await EngineStub(channel).Embed(engine_pb2.VectorsRequest(texts=texts), timeout=20)
        answer = await (await client.post("/v1/embeddings", json={"model": "tiny", "input": texts})).json()
        for vector, expected in zip(reply.vectors, answer["data"], strict=True):
            assert list(vector.values) == pytest.approx(expected["embedding"], abs=1e-6)
        assert reply.usage.prompt_tokens == answer["usage"]["prompt_tokens"]
        for wrong in ([], [""]):
            status, details = await refusal(
                EngineStub(channel).Embed(engine_pb2.VectorsRequest(texts=wrong), timeout=20)
            )
            assert status is grpc.StatusCode.INVALID_ARGUMENT
            assert "input" in details
