"""The same small questions and orders to a replica behind gRPC, answered as HTTP would: whoever asks need not know.

Knows engine.proto's and vLLM's questions, and the pages that they stand for; knows nothing of who asks or of requests.
"""

import asyncio
import io
import json
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc
import msgspec
from grpc_health.v1 import health_pb2

from pointsman.v1 import engine_pb2, engine_pb2_grpc, vllm_engine_pb2, vllm_engine_pb2_grpc
from router.errors import BadAnswer, ConnectFailed, ConnectionCut, UpstreamError, UpstreamTimeout
from router.replicas.fetch import Answer, ConnectRefused
from router.spec import ReplicaSpec

MAX_MESSAGE_BYTES = 64 * 2**20
_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # A replica that comes back is found by the next question, not when a pause between tries is over.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
_STATUSES: Mapping[grpc.StatusCode, int] = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.ALREADY_EXISTS: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.UNIMPLEMENTED: 405,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
}
_TOKENIZER_FILES = frozenset(("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"))


@dataclass(eq=False, slots=True)
class GrpcReplica:
    """One replica and the channel to it. Which contract it speaks is found out with the first question."""

    spec: ReplicaSpec
    channel: grpc.aio.Channel
    is_vllm: bool | None = None

    @classmethod
    def at(cls, spec: ReplicaSpec) -> "GrpcReplica":
        scheme, _, target = spec.url.partition("://")
        if scheme == "grpc":
            return cls(spec, grpc.aio.insecure_channel(target, options=_OPTIONS))
        return cls(spec, grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(), options=_OPTIONS))

    async def ask(self, path: str, timeout_s: float, order: bytes | None) -> Answer:
        """What HTTP would answer at this path. Raises an UpstreamError where there is nothing in time."""
        where = f"{self.spec.id}{path}"
        try:
            async with asyncio.timeout(timeout_s):
                return Answer(*await self._page(path, json.loads(order or b"{}")))
        except TimeoutError as error:
            raise UpstreamTimeout(f"{where} gave no answer within {timeout_s:g} s") from error
        except grpc.aio.AioRpcError as error:
            status = _STATUSES.get(error.code())
            if status is None:
                raise _failure(where, error) from error
            words = {"error": {"message": error.details() or error.code().name}}
            return Answer(status, msgspec.json.encode(words))

    async def _page(self, path: str, order: Mapping[str, Any]) -> tuple[int, bytes]:
        match path:
            case "/health":
                return await self._health()
            case "/v1/models":
                return 200, await self._models()
            case "/metrics":
                return 200, await self._metrics()
            case "/pointsman/tokenizer":
                return 200, await self._tokenizer_page()
        if await self._speaks_vllm():
            return 404, b""
        engine = engine_pb2_grpc.EngineStub(self.channel)
        match path:
            case "/is_sleeping":
                info = await engine.Info(engine_pb2.InfoRequest(), metadata=self._metadata)
                return 200, msgspec.json.encode({"is_sleeping": info.is_asleep})
            case "/wake_up":
                await engine.Wake(engine_pb2.WakeRequest(), metadata=self._metadata)
            case "/v1/load_lora_adapter":
                load = engine_pb2.LoadAdapterRequest(name=order["lora_name"], path=order["lora_path"])
                await engine.LoadAdapter(load, metadata=self._metadata)
            case "/v1/unload_lora_adapter":
                forget = engine_pb2.UnloadAdapterRequest(name=order["lora_name"])
                await engine.UnloadAdapter(forget, metadata=self._metadata)
            case _:
                return 404, b""
        return 200, b"{}"

    @property
    def _metadata(self) -> tuple[tuple[str, str], ...]:
        key = self.spec.api_key
        return () if key is None else (("authorization", f"Bearer {key}"),)

    async def _speaks_vllm(self) -> bool:
        if self.is_vllm is None:
            await self._models()
        return bool(self.is_vllm)

    async def _health(self) -> tuple[int, bytes]:
        check = self.channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        found = await check(health_pb2.HealthCheckRequest(), metadata=self._metadata)
        return 200 if found.status == health_pb2.HealthCheckResponse.SERVING else 503, b""

    async def _models(self) -> bytes:
        if not self.is_vllm:
            try:
                info = await engine_pb2_grpc.EngineStub(self.channel).Info(
                    engine_pb2.InfoRequest(), metadata=self._metadata
                )
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                    raise
            else:
                self.is_vllm = False
                return _model_list(info.model, info.max_model_len, "pointsman", list(info.adapters))
        stub = vllm_engine_pb2_grpc.VllmEngineStub(self.channel)
        model = await stub.GetModelInfo(vllm_engine_pb2.GetModelInfoRequest(), metadata=self._metadata)
        self.is_vllm = True
        return _model_list(model.served_model_name or model.model_path, model.max_context_length, "vllm", [])

    async def _metrics(self) -> bytes:
        if await self._speaks_vllm():
            return await self._vllm_metrics()
        stub = engine_pb2_grpc.EngineStub(self.channel)
        async for report in stub.Load(engine_pb2.LoadRequest(), metadata=self._metadata):
            ratio = report.used_blocks / report.total_blocks if report.total_blocks else 0.0
            page = _page_of_load(report.running, report.waiting, ratio, report.block_size, report.total_blocks)
            return page + f"pointsman_engine_queued_prefill_tokens {report.queued_tokens}\n".encode()
        raise BadAnswer(f"{self.spec.id} reported no load")

    async def _vllm_metrics(self) -> bytes:
        stub = vllm_engine_pb2_grpc.VllmEngineStub(self.channel)
        server = await stub.GetServerInfo(vllm_engine_pb2.GetServerInfoRequest(), metadata=self._metadata)
        told = await stub.GetLoads(vllm_engine_pb2.GetLoadsRequest(), metadata=self._metadata)
        running = sum(each.num_running_reqs for each in told.loads)
        waiting = sum(each.num_waiting_reqs for each in told.loads)
        ratio = sum(each.token_usage for each in told.loads) / max(1, len(told.loads))
        num_tokens = min((each.max_total_num_tokens for each in told.loads), default=0)
        size = max(0, server.block_size)
        return _page_of_load(running, waiting, ratio, size, num_tokens // size if size else 0)

    async def _tokenizer_page(self) -> bytes:
        """The same JSON object from both contracts."""
        if not await self._speaks_vllm():
            engine = engine_pb2_grpc.EngineStub(self.channel)
            told = engine.Tokenizer(engine_pb2.TokenizerRequest(), metadata=self._metadata)
            return b"".join([part.json async for part in told])
        vllm = vllm_engine_pb2_grpc.VllmEngineStub(self.channel)
        parts = vllm.GetTokenizer(vllm_engine_pb2.GetTokenizerRequest(), metadata=self._metadata)
        archive = b"".join([part.data async for part in parts])
        return await asyncio.to_thread(_unpacked, archive, self.spec.id)


def _failure(where: str, error: grpc.aio.AioRpcError) -> UpstreamError:
    words = f"{where}: {error.code().name}: {error.details()}"
    match error.code():
        case grpc.StatusCode.UNAVAILABLE:
            return (ConnectRefused if "refused" in (error.details() or "").lower() else ConnectFailed)(words)
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return UpstreamTimeout(words)
        case grpc.StatusCode.CANCELLED:
            return ConnectionCut(words)
    return BadAnswer(words)


def _model_list(model: str, max_model_len: int, owner: str, adapters: list[str]) -> bytes:
    """As /v1/models has it."""
    base = {"id": model, "parent": None, "max_model_len": max_model_len or None, "owned_by": owner}
    return msgspec.json.encode({"data": [base, *({**base, "id": name, "parent": model} for name in adapters)]})


def _page_of_load(running: int, waiting: int, kv_used_ratio: float, block_size: int, num_blocks: int) -> bytes:
    """As /metrics has it."""
    return (
        f"vllm:num_requests_running {running}\n"
        f"vllm:num_requests_waiting {waiting}\n"
        f"vllm:kv_cache_usage_perc {kv_used_ratio}\n"
        f'vllm:cache_config_info{{block_size="{block_size}",num_gpu_blocks="{num_blocks}"}} 1\n'
    ).encode()


def _unpacked(archive: bytes, replica_id: str) -> bytes:
    """A tokenizer's files as the one object that our engine serves. Raises BadAnswer."""
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as files:
            names = {name.rsplit("/", 1)[-1]: name for name in files.namelist()}
            texts = {name: files.read(names[name]).decode() for name in _TOKENIZER_FILES & names.keys()}
        config = json.loads(texts.get("tokenizer_config.json", "{}"))
        found: dict[str, Any] = {"tokenizer": json.loads(texts["tokenizer.json"])}
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise BadAnswer(f"{replica_id} handed out a tokenizer that cannot be read: {error}") from None
    template = texts.get("chat_template.jinja") or config.get("chat_template")
    if isinstance(template, list):  # several by name
        with suppress(StopIteration, TypeError, KeyError):
            template = next(each["template"] for each in template if each["name"] == "default")
    for name, value in (
        ("chat_template", template),
        *((f"{at}_token", config.get(f"{at}_token")) for at in ("bos", "eos")),
    ):
        text = value.get("content") if isinstance(value, dict) else value
        found[name] = text if isinstance(text, str) else None
    return msgspec.json.encode(found)
