"""`ports.Reply` over gRPC: the real port on loopback, and a client that tells what it heard as SSE would have said
it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from pointsman.v1.inference_pb2 import ChatEvent, ChatMessage, ChatRequest, ContentPart
from pointsman.v1.inference_pb2_grpc import InferenceStub
from router.core import Headers, Surface
from router.transports.grpc.calls import Calls, Context
from router.transports.grpc.failures import DETAILS_KEY
from router.transports.grpc.kserve import KserveService
from router.transports.grpc.server import GrpcAddress, grpc_port
from router.transports.grpc.service import InferenceService
from router.transports.http import PortLimits
from router.transports.outbox import Outbox
from tests.contracts.answers import Answer
from tests.contracts.hostile import DONE, event
from tests.fakes import Station, until

MAX_MESSAGE_BYTES = 2**20
# The HTTP status that a code stands for.
STATUSES = {3: 400, 4: 504, 5: 404, 7: 403, 8: 429, 12: 501, 13: 500, 14: 502, 16: 401}


class GrpcClient:
    """One call at a time has a number; it reads messages as they come until it is told to stop."""

    def __init__(self, stub: InferenceStub) -> None:
        self.answers: list[Answer] = []
        self._stub = stub
        self._tasks: list[asyncio.Task[None]] = []
        self._may_read = asyncio.Event()
        self._may_read.set()

    def ask(self, *headers: tuple[str, str], **fields: Any) -> None:
        """A chat request; `user` is what it says, so that its replica can be told whose it is."""
        message = ChatMessage(role="user", parts=[ContentPart(text=str(fields.get("user", "hi")))])
        asked = ChatRequest(model=str(fields.get("model", "m")), messages=[message])
        call = self._stub.ChatStream(asked, metadata=headers)
        self._tasks.append(asyncio.get_running_loop().create_task(self._hear(call)))

    async def answer(self, number: int = 0) -> Answer:
        """The answer of that number, once it is at its end, however it ends."""
        await until(lambda: len(self.answers) > number and self.answers[number].is_complete)
        return self.answers[number]

    async def head(self, number: int = 0) -> Answer:
        await until(lambda: len(self.answers) > number)
        return self.answers[number]

    async def read_until(self, text: bytes, number: int = 0) -> bytes:
        """The payload so far, once it has this in it."""
        answer = await self.head(number)
        await until(lambda: text in answer.body or answer.is_complete)
        assert text in answer.body
        return answer.payload

    def stop_reading(self) -> None:
        self._may_read.clear()

    def read_on(self) -> None:
        self._may_read.set()

    def leave(self) -> None:
        for task in self._tasks:
            task.cancel()

    @property
    def is_closed(self) -> bool:
        return all(task.done() for task in self._tasks)

    async def _hear(self, call: "grpc.aio.UnaryStreamCall[ChatRequest, ChatEvent]") -> None:
        answer: Answer | None = None
        try:
            answer = Answer(200, _plain(await call.initial_metadata()))
            while True:
                await self._may_read.wait()
                found = await call.read()
                if not isinstance(found, ChatEvent):
                    break
                if answer not in self.answers:
                    self.answers.append(answer)
                if found.text:
                    answer.body += event(found.text)
            await call.code()
            if await call.code() is not grpc.StatusCode.OK:
                raise grpc.aio.AioRpcError(await call.code(), grpc.aio.Metadata(), await call.trailing_metadata())
            answer.body += DONE
        except grpc.aio.AioRpcError as error:
            answer = self._fail(answer, error)
        finally:
            call.cancel()
        answer.is_complete = True

    def _fail(self, answer: Answer | None, error: grpc.aio.AioRpcError) -> Answer:
        """An answer that never began has a status of its own; else the error is its last event."""
        told, wait_s = _error(error)
        body = json.dumps({"error": told}).encode()
        if answer is not None and answer.body:
            answer.body += b"data: " + body + b"\n\n" + DONE
            return answer
        headers = {} if answer is None else answer.headers
        headers |= {} if wait_s is None else {"retry-after": str(wait_s)}
        failed = Answer(STATUSES.get(error.code().value[0], 500), headers | _plain(error.trailing_metadata()))
        failed.body += body
        self.answers.append(failed)
        return failed


@dataclass(eq=False)
class GrpcReplies:
    """`on_loss` is called right after the call has heard that its client is gone, in the same turn of the loop."""

    station: Station
    limits: PortLimits = field(default_factory=PortLimits)
    on_loss: Callable[[], None] = lambda: None
    clients: list[GrpcClient] = field(default_factory=list)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["GrpcReplies"]:
        station = self.station
        self.calls = _WatchedCalls(station.proxy.begin, station.clock, self.limits.request_timeout_s)
        self.calls.replies.append(self)
        service = InferenceService(self.calls, station.registry.models)
        kserve = KserveService(self.calls, station.registry.models, lambda: True, "0")
        where = GrpcAddress("127.0.0.1", 0)
        async with (
            grpc_port(where, service, kserve, lambda: True, MAX_MESSAGE_BYTES) as port,
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as self.channel,
        ):
            try:
                yield self
            finally:
                for client in self.clients:
                    client.leave()
                await until(lambda: all(client.is_closed for client in self.clients) and not self.calls.open)

    async def connect(self) -> GrpcClient:
        self.clients.append(GrpcClient(InferenceStub(self.channel)))
        return self.clients[-1]

    @property
    def num_unsent(self) -> int:
        """Bytes that wait in this process for clients that do not read, gRPC's own buffers aside."""
        return sum(outbox.num_unsent for outbox in self.calls.outboxes)


@dataclass(eq=False)
class _WatchedCalls(Calls):
    replies: list[GrpcReplies] = field(default_factory=list)
    outboxes: list[Outbox] = field(default_factory=list)

    @asynccontextmanager
    async def answer(
        self, context: Context, surface: Surface, body: bytes, more: Headers = ()
    ) -> AsyncIterator[tuple[str, Outbox]]:
        try:
            async with Calls.answer(self, context, surface, body, more) as found:
                self.outboxes.append(found[1])
                yield found
        finally:
            self.replies[0].on_loss()


def _plain(metadata: Any) -> dict[str, str]:
    return {name: value for name, value in metadata or () if isinstance(value, str)}


def _error(error: grpc.aio.AioRpcError) -> tuple[dict[str, object], int | None]:
    """OpenAI's error object, and seconds to wait where it says so."""
    kind = "upstream_error" if error.code() is grpc.StatusCode.UNAVAILABLE else None
    found: dict[str, object] = {"message": error.details(), "type": kind, "param": None, "code": None}
    wait_s = None
    for name, value in error.trailing_metadata() or ():
        if name != DETAILS_KEY:
            continue
        rich = Status.FromString(value if isinstance(value, bytes) else value.encode())
        found["message"] = rich.message
        for detail in rich.details:
            info, bad, again = ErrorInfo(), BadRequest(), RetryInfo()
            if detail.Unpack(info):
                found["code"] = info.reason
            elif detail.Unpack(bad):
                found["param"] = bad.field_violations[0].field
            elif detail.Unpack(again):
                wait_s = round(again.retry_delay.ToTimedelta().total_seconds())
    return found, wait_s
