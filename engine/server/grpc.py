"""The engine's gRPC port: engine.proto, with health checks and reflection.

Knows grpc.aio, the contract's calls and statuses. Must not know how requests are checked (options) or computed, or
how messages are shaped (messages).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import wraps
from itertools import count
from typing import Any, TypeVar

import grpc
import msgspec
from google.rpc.error_details_pb2 import BadRequest
from google.rpc.status_pb2 import Status
from grpc_health.v1 import health
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_reflection.v1alpha import reflection

from engine.adapters import UnknownAdapter
from engine.control import Control
from engine.loop import EngineError, OutputStream
from engine.model.fields import ModelError
from engine.sequence import Request
from engine.server import messages
from engine.server.chats import Arrival
from engine.server.errors import ApiError
from engine.server.fields import decode
from engine.server.following import TooSlow, follow
from engine.server.http import Service
from engine.server.openai import EmbeddingRequest
from engine.server.options import sampling_of
from engine.text import TextStream
from engine.transfer import KvTransfer
from pointsman.v1 import engine_pb2, engine_pb2_grpc

SERVICE = engine_pb2.DESCRIPTOR.services_by_name["Engine"].full_name
_MOST_MESSAGE_BYTES = 64 << 20
# Of a tokenizer; far below gRPC's 4 MiB.
_PART_BYTES = 1 << 20
_OPTIONS = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", _MOST_MESSAGE_BYTES)]
_STATUSES = {400: grpc.StatusCode.INVALID_ARGUMENT, 404: grpc.StatusCode.NOT_FOUND, 503: grpc.StatusCode.UNAVAILABLE}

Context = grpc.aio.ServicerContext[Any, Any]
_Self = TypeVar("_Self")
_Asked = TypeVar("_Asked")
_Reply = TypeVar("_Reply")
_Call = Callable[[_Self, _Asked, Context], Awaitable[_Reply]]


@asynccontextmanager
async def grpc_port(host: str, port: int, servicer: "EngineService") -> AsyncIterator[int]:
    """Serves until the block is left; yields the port. Raises OSError if the address cannot be had."""
    server = grpc.aio.server(options=_OPTIONS)
    checks = health.aio.HealthServicer()
    engine_pb2_grpc.add_EngineServicer_to_server(servicer, server)
    add_HealthServicer_to_server(checks, server)
    reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    try:
        bound = server.add_insecure_port(f"{host}:{port}")
    except RuntimeError as error:
        raise OSError(str(error)) from None
    for name in ("", SERVICE):
        await checks.set(name, HealthCheckResponse.SERVING)
    await server.start()
    try:
        yield bound
    finally:
        await checks.enter_graceful_shutdown()
        await server.stop(None)


def _translated(call: _Call[_Self, _Asked, _Reply]) -> _Call[_Self, _Asked, _Reply]:
    """What it raises becomes the call's status."""

    @wraps(call)
    async def translated(self: _Self, asked: _Asked, context: Context) -> _Reply:
        try:
            return await call(self, asked, context)
        except (ApiError, EngineError, ModelError, OSError, ValueError, TooSlow) as error:
            status, message, details = _status(error), str(error), _details(error)
        # Outside the except block, so that the status is not told as another failure's failure.
        await context.abort(status, message, details)
        raise AssertionError("abort has raised")

    return translated


def _status(error: Exception) -> grpc.StatusCode:
    match error:
        case ApiError():
            return _STATUSES.get(error.status, grpc.StatusCode.INTERNAL)
        case EngineError():
            return grpc.StatusCode.UNAVAILABLE if error.is_stopped else grpc.StatusCode.INTERNAL
        case UnknownAdapter():
            return grpc.StatusCode.NOT_FOUND
        case AlreadyOpen():
            return grpc.StatusCode.ALREADY_EXISTS
        case ValueError():
            return grpc.StatusCode.INVALID_ARGUMENT
        case TooSlow():
            return grpc.StatusCode.RESOURCE_EXHAUSTED
    return grpc.StatusCode.INTERNAL


def _details(error: Exception) -> tuple[tuple[str, bytes], ...]:
    """The field at fault, as google.rpc's rich errors name it."""
    if not isinstance(error, ApiError) or error.param is None:
        return ()
    rich = Status(code=_status(error).value[0], message=str(error))
    rich.details.add().Pack(BadRequest(field_violations=[{"field": error.param, "description": str(error)}]))
    return (("grpc-status-details-bin", rich.SerializeToString()),)


class AlreadyOpen(ValueError):
    """A request of that id is open."""


@dataclass(eq=False, slots=True)
class EngineService(engine_pb2_grpc.EngineServicer):
    """`engine_id` names this life of the process."""

    service: Service
    control: Control[Any]
    transfer: KvTransfer
    engine_id: str
    _open: dict[str, OutputStream] = field(default_factory=dict)
    _numbers: "count[int]" = field(default_factory=count)

    @_translated
    async def Generate(self, asked: engine_pb2.GenerateRequest, context: Context) -> None:
        if asked.request_id in self._open:
            raise AlreadyOpen(f"request_id {asked.request_id} is open already")
        params = messages.transfer_params(asked)
        self.transfer.check(params)
        request = await self._request(asked)
        scope = self.service.engine.core.scheduler.scope_of(request)
        if params.do_remote_prefill:
            await self.transfer.fetch(params, request.prompt, scope)
        text = TextStream(self.service.tokenizer.decoder(), request.sampling.stop)
        with self.service.engine.submit(request, text) as outputs:
            self._open[asked.request_id] = outputs
            try:
                async for event in messages.generated(outputs, request):
                    if event.finish_reason and params.do_remote_decode:
                        offered = await self.transfer.offer(request.prompt, scope)
                        event.kv_transfer.CopyFrom(messages.kv_transfer(offered))
                    await context.write(event)
            finally:
                del self._open[asked.request_id]

    @_translated
    async def Abort(self, asked: engine_pb2.AbortRequest, context: Context) -> engine_pb2.AbortReply:
        found = [request_id for request_id in asked.request_ids if request_id in self._open]
        for request_id in found:
            self._open[request_id].abort()
        return engine_pb2.AbortReply(aborted_request_ids=found)

    @_translated
    async def Embed(self, asked: engine_pb2.VectorsRequest, context: Context) -> engine_pb2.VectorsReply:
        wish = decode(msgspec.json.encode({"model": "", "input": list(asked.texts)}), EmbeddingRequest)
        requests, vectors = await self.service.embedder.vectors(wish, Arrival(self.service.engine.clock()))
        return engine_pb2.VectorsReply(
            vectors=[engine_pb2.Vector(values=vector) for vector in vectors],
            usage={"prompt_tokens": sum(len(request.prompt) for request in requests)},
        )

    @_translated
    async def Info(self, asked: engine_pb2.InfoRequest, context: Context) -> engine_pb2.InfoReply:
        service, scheduler = self.service, self.service.engine.core.scheduler
        return engine_pb2.InfoReply(
            model=service.model_id,
            max_model_len=service.max_model_len,
            vocab_size=service.vocab_size,
            block_size=scheduler.pool.block_size,
            adapters=[adapter.name for adapter in scheduler.adapters],
            engine_id=self.engine_id,
            is_asleep=self.control.is_asleep,
        )

    @_translated
    async def Load(self, asked: engine_pb2.LoadRequest, context: Context) -> None:
        scheduler = self.service.engine.core.scheduler
        await context.write(messages.load_report(scheduler))
        while asked.interval_ms:
            await asyncio.sleep(asked.interval_ms / 1e3)
            await context.write(messages.load_report(scheduler))

    @_translated
    async def Events(self, asked: engine_pb2.EventsRequest, context: Context) -> None:
        block_size = self.service.engine.core.scheduler.pool.block_size
        sequence = count()
        async with follow(self.service.engine) as (held, changes):
            for event in messages.snapshot(held, block_size):
                event.sequence, event.boot_id = next(sequence), self.engine_id
                await context.write(event)
            async for change in changes:
                event = messages.kv_event(change)
                event.sequence, event.boot_id = next(sequence), self.engine_id
                await context.write(event)

    @_translated
    async def LoadAdapter(self, asked: engine_pb2.LoadAdapterRequest, context: Context) -> engine_pb2.LoadAdapterReply:
        await self.control.load_adapter(asked.name, asked.path)
        return engine_pb2.LoadAdapterReply()

    @_translated
    async def UnloadAdapter(
        self, asked: engine_pb2.UnloadAdapterRequest, context: Context
    ) -> engine_pb2.UnloadAdapterReply:
        await self.control.unload_adapter(asked.name)
        return engine_pb2.UnloadAdapterReply()

    @_translated
    async def Sleep(self, asked: engine_pb2.SleepRequest, context: Context) -> engine_pb2.SleepReply:
        await self.control.sleep(asked.level)
        return engine_pb2.SleepReply()

    @_translated
    async def Wake(self, asked: engine_pb2.WakeRequest, context: Context) -> engine_pb2.WakeReply:
        await self.control.wake()
        return engine_pb2.WakeReply()

    @_translated
    async def Tokenizer(self, asked: engine_pb2.TokenizerRequest, context: Context) -> None:
        described = await asyncio.to_thread(self.service.described)
        for at in range(0, len(described), _PART_BYTES):
            await context.write(engine_pb2.TokenizerPart(json=described[at : at + _PART_BYTES]))

    async def _request(self, asked: engine_pb2.GenerateRequest) -> Request:
        """Raises ApiError and UnknownAdapter for what cannot be run, naming the field."""
        planner, engine = self.service.planner, self.service.engine
        prompt = asked.text if asked.HasField("text") else list(asked.token_ids)
        if asked.HasField("text") and asked.token_ids:
            raise ValueError("give either token_ids or text")
        tokens = await planner.prompts.of_text(prompt, "text" if asked.HasField("text") else "token_ids")
        options = messages.options(asked.sampling, planner.limits.max_model_len - len(tokens))
        return Request(
            # Ids come back at once when clients reuse them: ours never do.
            id=f"grpc-{next(self._numbers)}-{asked.request_id}",
            prompt=tuple(tokens),
            sampling=sampling_of(options, len(tokens), planner.limits),
            arrived_s=engine.clock(),
            priority=asked.priority,
            salt=asked.cache_salt if asked.HasField("cache_salt") else None,
            adapter=asked.adapter if asked.HasField("adapter") else None,
        )
