"""A gRPC port on loopback over a real station whose replicas are in memory, and its client."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
from google.rpc import error_details_pb2, status_pb2

from pointsman.v1.inference_pb2 import ChatMessage, ChatRequest, ContentPart
from pointsman.v1.inference_pb2_grpc import InferenceStub
from router.transports.grpc.calls import Calls
from router.transports.grpc.failures import DETAILS_KEY
from router.transports.grpc.kserve import KserveService
from router.transports.grpc.server import GrpcAddress, Tls, grpc_port
from router.transports.grpc.service import InferenceService
from tests.fakes import FakeExchange, FakeUpstream, Station, specs_of, until

TIMEOUT_S = 600.0
MAX_MESSAGE_BYTES = 2**20


@dataclass(eq=False)
class Rig:
    station: Station
    upstream: FakeUpstream
    calls: Calls
    stub: InferenceStub
    channel: grpc.aio.Channel

    async def exchange(self, number: int = 0) -> FakeExchange:
        """The attempt of that number, once a replica has it."""
        await until(lambda: len(self.upstream.exchanges) > number)
        return self.upstream.exchanges[number]

    async def until_idle(self) -> None:
        await until(lambda: not self.station.left_over and not self.calls.open)


@asynccontextmanager
async def open_rig(
    tls: Tls | None = None,
    channel_of: Callable[[int], grpc.aio.Channel] = lambda port: grpc.aio.insecure_channel(f"127.0.0.1:{port}"),
    is_ready: Callable[[], bool] = lambda: True,
    **settings: object,
) -> AsyncIterator[Rig]:
    """Ends with every count at zero."""
    upstream = FakeUpstream()
    station = Station(upstream, specs_of("ab"), **settings)  # type: ignore[arg-type]
    address = GrpcAddress("127.0.0.1", 0, tls=tls)
    calls = Calls(station.proxy.begin, station.clock, TIMEOUT_S)
    service = InferenceService(calls, station.registry.models)
    kserve = KserveService(calls, station.registry.models, is_ready, "1.2")
    async with grpc_port(address, service, kserve, is_ready, MAX_MESSAGE_BYTES) as port, channel_of(port) as channel:
        rig = Rig(station, upstream, calls, InferenceStub(channel), channel)
        yield rig
        await rig.until_idle()


def chat(text: str = "hi", **fields: object) -> ChatRequest:
    message = ChatMessage(role="user", parts=[ContentPart(text=text)])
    return ChatRequest(**{"model": "m", "messages": [message], **fields})  # type: ignore[arg-type]


def status_of(error: grpc.aio.AioRpcError) -> status_pb2.Status:
    """The rich status of a failed call."""
    [packed] = [value for name, value in error.trailing_metadata() if name == DETAILS_KEY]
    return status_pb2.Status.FromString(packed)


def reason_of(error: grpc.aio.AioRpcError) -> str:
    for each in status_of(error).details:
        found = error_details_pb2.ErrorInfo()
        if each.Unpack(found):
            return str(found.reason)
    return ""


def field_of(error: grpc.aio.AioRpcError) -> str:
    for each in status_of(error).details:
        found = error_details_pb2.BadRequest()
        if each.Unpack(found):
            return str(found.field_violations[0].field)
    return ""
