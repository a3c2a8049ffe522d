"""The router's contract with a replica over a real grpc.aio server in this process: every call, there and back."""

from collections.abc import AsyncIterator, Iterator

import grpc
import pytest

from pointsman.blockhash import block_hashes
from pointsman.v1.common_pb2 import FINISH_REASON_STOP, Sampling, Usage
from pointsman.v1.engine_pb2 import (
    AbortReply,
    AbortRequest,
    EventsRequest,
    GenerateEvent,
    GenerateRequest,
    KvCleared,
    KvEvent,
    KvRemoved,
    KvSnapshot,
    KvStored,
    LoadReport,
    LoadRequest,
)
from pointsman.v1.engine_pb2_grpc import EngineServicer, EngineStub, add_EngineServicer_to_server

HASHES = block_hashes(range(64), 16)


def kv_events() -> Iterator[KvEvent]:
    yield KvEvent(snapshot=KvSnapshot(chains=[KvStored(block_hashes=HASHES[:2])], block_size=16, is_last=True))
    yield KvEvent(stored=KvStored(parent_hash=HASHES[1], block_hashes=HASHES[2:]))
    yield KvEvent(removed=KvRemoved(block_hashes=HASHES[3:]))
    yield KvEvent(cleared=KvCleared())


class Replica(EngineServicer):
    """Says back what it was sent, so that each field has made the way out and home."""

    async def Generate(self, request: GenerateRequest, context: object) -> AsyncIterator[GenerateEvent]:
        for token in request.token_ids:
            yield GenerateEvent(token_ids=[token], text=request.adapter)
        usage = Usage(prompt_tokens=len(request.token_ids), cached_tokens=1, output_tokens=request.sampling.max_tokens)
        yield GenerateEvent(finish_reason=FINISH_REASON_STOP, usage=usage)

    async def Abort(self, request: AbortRequest, context: object) -> AbortReply:
        return AbortReply(aborted_request_ids=request.request_ids[:1])

    async def Load(self, request: LoadRequest, context: object) -> AsyncIterator[LoadReport]:
        for running in range(3 if request.interval_ms else 1):
            yield LoadReport(running=running, queued_tokens=2**40, used_blocks=1, total_blocks=4, adapters=["blue"])

    async def Events(self, request: EventsRequest, context: object) -> AsyncIterator[KvEvent]:
        for sequence, event in enumerate(kv_events()):
            event.sequence, event.boot_id = sequence, "boot"
            yield event


@pytest.fixture
async def stub() -> AsyncIterator[EngineStub]:
    server = grpc.aio.server()
    add_EngineServicer_to_server(Replica(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield EngineStub(channel)
    await server.stop(None)


async def test_tokens_go_in_and_come_back_with_the_usage(stub: EngineStub) -> None:
    request = GenerateRequest(request_id="r1", token_ids=[5, 6], sampling=Sampling(max_tokens=9), adapter="blue")
    events = [event async for event in stub.Generate(request, timeout=20)]
    assert [(list(event.token_ids), event.text) for event in events] == [([5], "blue"), ([6], "blue"), ([], "")]
    assert events[-1].finish_reason == FINISH_REASON_STOP
    usage = events[-1].usage
    assert (usage.prompt_tokens, usage.cached_tokens, usage.output_tokens) == (2, 1, 9)


async def test_an_abort_says_which_requests_it_found(stub: EngineStub) -> None:
    reply = await stub.Abort(AbortRequest(request_ids=["r1", "gone"]), timeout=20)
    assert list(reply.aborted_request_ids) == ["r1"]


@pytest.mark.parametrize(("interval_ms", "num_reports"), [(0, 1), (5, 3)])
async def test_load_is_one_report_or_a_stream_of_them(stub: EngineStub, interval_ms: int, num_reports: int) -> None:
    reports = [report async for report in stub.Load(LoadRequest(interval_ms=interval_ms), timeout=20)]
    assert [report.running for report in reports] == list(range(num_reports))
    assert (reports[0].queued_tokens, list(reports[0].adapters)) == (2**40, ["blue"])


async def test_events_carry_block_hashes_as_they_are(stub: EngineStub) -> None:
    events = [event async for event in stub.Events(EventsRequest(), timeout=20)]
    assert [event.sequence for event in events] == [0, 1, 2, 3]
    assert [event.WhichOneof("event") for event in events] == ["snapshot", "stored", "removed", "cleared"]
    head = events[0].snapshot.chains[0]
    assert list(head.block_hashes) == HASHES[:2]
    assert not head.HasField("parent_hash")
    assert events[1].stored.parent_hash == HASHES[1]
