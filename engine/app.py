"""Composition root: loads the model, builds each part and hands it what it needs, runs until told to stop.

Knows every part. Must not know flags (config) or anything that a part can decide for itself.
"""

import asyncio
import logging
import signal
import socket
import uuid
from contextlib import AsyncExitStack, ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web

from engine.adapters import AdapterSlots
from engine.blocks import BlockPool
from engine.config import BLOCK_SIZE, EngineConfig
from engine.control import Control
from engine.core import EngineCore
from engine.drafts import Drafting
from engine.fetch import MODELS, fetch
from engine.loading import LoadPhases, progress_bar
from engine.loop import EngineLoop
from engine.lora import read_lora
from engine.model.attention import kv_dtype, prepare
from engine.model.checkpoint import Checkpoint, open_checkpoint
from engine.model.config import ModelConfig
from engine.model.fingerprint import fingerprint
from engine.model.kv_cache import KVCache, bytes_per_block
from engine.model.loader import load
from engine.model.low_rank import Slots
from engine.model.placement import device_named, dtype_named, quantized_named, use_threads
from engine.model.pooling_files import read_pooling
from engine.model.residence import Residence
from engine.model.weights import weight_shapes
from engine.runner import Runner
from engine.sampling import Pooling
from engine.scheduler import Scheduler
from engine.server.events import EventsError, KvEventPublisher, KvEventsConfig
from engine.server.grpc import EngineService, grpc_port
from engine.server.http import Service
from engine.server.operator import Operator
from engine.server.tools import ToolFormat
from engine.tokenizer import Tokenizer
from engine.transfer import KvMemory, KvTransfer

log = logging.getLogger(__name__)

# Whoever stops the engine waits two seconds; the rest of them is for the process to end.
_STOP_WITHIN_S = 1.0


class StartError(Exception):
    """The engine cannot start as asked; the message is one sentence for the user."""


@dataclass(frozen=True, slots=True)
class Parts:
    """An engine that is built and not yet started; `about` describes it in a line."""

    config: EngineConfig
    service: Service
    control: Control[Any]
    transfer: KvTransfer
    events: KvEventPublisher | None
    about: str


def listen(host: str, port: int) -> socket.socket:
    """Takes the port before the model is loaded, so that a taken one is told at once. Raises StartError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        with ExitStack() as undo:
            listener = undo.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            undo.pop_all()
            return listener
    except OSError as error:
        raise StartError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None


def build(config: EngineConfig) -> Parts:
    """Raises StartError, AdapterError, ModelError, FetchError, PlacementError, MemoryError, OSError; each says what is
    wrong."""
    path = _model_path(config.model)
    machine = _machine(config, path)
    checkpoint, runner, slots, num_blocks = machine.checkpoint, machine.runner, machine.slots, machine.num_blocks
    model, kv_type = checkpoint.config, machine.kv_type
    max_model_len = _max_model_len(config, model, num_blocks)
    events = _events(config)
    pool = BlockPool(num_blocks, BLOCK_SIZE, machine.num_host_blocks, records_changes=events is not None)
    adapters = AdapterSlots(config.max_loras, config.max_cpu_loras)
    drafting = Drafting(config.prompt_lookup_tokens) if config.prompt_lookup_tokens else None
    scheduler = Scheduler(pool, config.max_num_seqs, config.max_num_batched_tokens, adapters, drafting)
    engine = EngineLoop(EngineCore(scheduler), runner.run)
    engine.core.stats.load_s = machine.load_s
    model_id = config.served_model_name or _model_id(config.model)
    read_adapter = partial(read_lora, shapes=weight_shapes(model), max_rank=config.max_lora_rank)
    control = Control(engine, model_id, read_adapter, slots.keep, machine.residence.sleep, machine.residence.wake)
    for entry in config.lora:
        control.load_before_start(*entry.split("=", 1))
    kv_memory = partial(
        _kv_memory,
        runner,
        pool,
        fingerprint(checkpoint, kv_type, BLOCK_SIZE),
        bytes_per_block(model, BLOCK_SIZE, kv_type),
    )
    transfer = KvTransfer(engine, kv_memory, engine_id=uuid.uuid4().hex)
    service = Service(
        engine=engine,
        tokenizer=Tokenizer.load(path, _chat_template(config)),
        model_id=model_id,
        root=config.model,
        vocab_size=model.vocab_size,
        max_model_len=max_model_len,
        transfer=transfer,
        tool_format=None if config.tool_call_format == "auto" else ToolFormat(config.tool_call_format),
        pooling=_pooling(config, path),
        vector_size=model.hidden_size,
    )
    about = f"{model_id} on {machine.about}, {num_blocks} KV blocks, context {max_model_len}"
    return Parts(config, service, control, transfer, events, about)


@dataclass(frozen=True, slots=True)
class _Machine:
    """What computes, and where its KV lies. `load_s` has the seconds of each phase of the start."""

    about: str
    checkpoint: Checkpoint
    runner: Runner
    slots: Slots
    residence: Residence
    kv_type: Any
    num_blocks: int
    num_host_blocks: int
    load_s: dict[str, float]


def _machine(config: EngineConfig, path: Path) -> _Machine:
    if config.threads is not None:
        use_threads(config.threads)
    device = device_named(config.device)
    dtype = dtype_named(config.dtype, device)
    quantized = quantized_named(config.quantized, dtype, device)
    phases = LoadPhases()
    with phases.timed("open"):
        checkpoint = open_checkpoint(path)
    model, kv_type = checkpoint.config, kv_dtype(dtype, device)
    num_blocks = _num_blocks(config, bytes_per_block(model, BLOCK_SIZE, kv_type))
    num_host_blocks = int(config.host_kv_gib * 2**30) // bytes_per_block(model, BLOCK_SIZE, kv_type)
    _max_model_len(config, model, num_blocks)  # Refused before the weights are read.

    def allocate() -> tuple[KVCache, KVCache | None]:
        cache = KVCache.allocate(model, num_blocks, BLOCK_SIZE, kv_type, device)
        if not num_host_blocks:
            return cache, None
        return cache, KVCache.allocate(model, num_host_blocks, BLOCK_SIZE, kv_type, device_named("cpu"))

    read_weights = partial(load, checkpoint, dtype, device, quantized, progress_bar())
    slots = Slots(dtype, device)
    with phases.timed("weights"):
        weights = read_weights()
    with phases.timed("kv_cache"):
        runner = Runner(weights, *allocate(), slots)
    with phases.timed("kernels"):
        prepare(runner.cache, model.num_heads)
    return _Machine(
        about=f"{device}, {str(dtype).removeprefix('torch.')}",
        checkpoint=checkpoint,
        runner=runner,
        slots=slots,
        residence=Residence(runner, device, read_weights, allocate),
        kv_type=kv_type,
        num_blocks=num_blocks,
        num_host_blocks=num_host_blocks,
        load_s=phases.took_s,
    )


async def serve(parts: Parts, listener: socket.socket) -> None:
    """Until SIGTERM or SIGINT. What is then under way ends with an error that says so. Raises StartError."""
    config, service = parts.config, parts.service
    async with AsyncExitStack() as opened:
        if parts.events is not None:
            _open_events(parts.events, service, opened)
        service.engine.start()
        if config.kv_transfer_port is not None:
            await _open_transfer(parts.transfer, config, opened)
        if config.grpc_port is not None:
            await _open_grpc(parts, config.grpc_port, opened)
        await _serve_http(parts, listener)


async def _open_transfer(transfer: KvTransfer, config: EngineConfig, opened: AsyncExitStack) -> None:
    try:
        server = await transfer.serve(config.host, config.kv_transfer_port or 0)
    except OSError as error:
        raise StartError(f"cannot listen on {config.host}:{config.kv_transfer_port} for KV: {error.strerror}") from None
    opened.callback(server.close)
    log.info("KV is handed out at %s:%s", transfer.host, transfer.port)


async def _open_grpc(parts: Parts, port: int, opened: AsyncExitStack) -> None:
    host = parts.config.host
    servicer = EngineService(parts.service, parts.control, parts.transfer, parts.transfer.engine_id)
    try:
        port = await opened.enter_async_context(grpc_port(host, port, servicer))
    except OSError as error:
        raise StartError(f"cannot listen on {host}:{port} for gRPC: {error}") from None
    log.info("gRPC at %s:%d", host, port)


def _open_events(events: KvEventPublisher, service: Service, opened: AsyncExitStack) -> None:
    try:
        events.open()
    except EventsError as error:
        raise StartError(str(error)) from None
    opened.enter_context(closing(events))
    service.engine.listeners.append(events.publish)


async def _serve_http(parts: Parts, listener: socket.socket) -> None:
    service = parts.service
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    app = service.app()
    app.add_routes(Operator(parts.control).routes())
    # aiohttp cancels a handler whose client has gone only if told to; that cancel is what frees the blocks.
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=_STOP_WITHIN_S / 2)
    await runner.setup()
    await web.SockSite(runner, listener, backlog=1024).start()
    host, port = listener.getsockname()[:2]
    log.info("ready: %s, at http://%s:%d", parts.about, host, port)
    await stopping.wait()
    service.engine.stop("the engine is shutting down")
    await runner.cleanup()
    await asyncio.to_thread(service.engine.join, _STOP_WITHIN_S / 2)


def _model_path(model: str) -> Path:
    path = Path(model)
    if path.exists():
        return path
    if model in MODELS:
        return fetch(model)
    raise StartError(f"there is no model at {model}; give a .gguf file, a folder, or one of {', '.join(MODELS)}")


def _chat_template(config: EngineConfig) -> str | None:
    return None if config.chat_template is None else Path(config.chat_template).read_text(encoding="utf-8")


def _pooling(config: EngineConfig, path: Path) -> Pooling:
    return (read_pooling(path) or Pooling.LAST) if config.pooling == "auto" else Pooling(config.pooling)


def _model_id(model: str) -> str:
    path = Path(model)
    return path.stem if path.suffix == ".gguf" else path.resolve().name


def _kv_memory(runner: Runner, pool: BlockPool, format: str, block_bytes: int) -> KvMemory:
    """What of the runner's memory is there now: sleep takes it away, and waking gives another."""
    tiers = runner.tiers

    def flush() -> None:
        if copies := pool.take_copies():
            tiers.copy(copies)

    return KvMemory(format, block_bytes, tiers.read, tiers.write, flush)


def _events(config: EngineConfig) -> KvEventPublisher | None:
    if config.kv_events_config is None:
        return None
    try:
        asked = KvEventsConfig.parse(config.kv_events_config)
    except EventsError as error:
        raise StartError(str(error)) from None
    return KvEventPublisher(asked, BLOCK_SIZE) if asked.is_on else None


def _num_blocks(config: EngineConfig, block_bytes: int) -> int:
    num_blocks = int(config.kv_cache_gib * 2**30) // block_bytes
    if num_blocks < 1:
        raise StartError(f"--kv-cache-gib {config.kv_cache_gib} is less than one KV block ({block_bytes} bytes)")
    return num_blocks


def _max_model_len(config: EngineConfig, model: ModelConfig, num_blocks: int) -> int:
    """No request may need more blocks than there are, so the context is never longer than the cache."""
    in_cache = num_blocks * BLOCK_SIZE
    asked = config.max_model_len
    if asked is None:
        return min(model.max_position, in_cache)
    if asked > model.max_position:
        raise StartError(f"--max-model-len {asked} is more than the model's {model.max_position} positions")
    if asked > in_cache:
        raise StartError(f"--max-model-len {asked} is more than the KV cache's {in_cache} tokens (--kv-cache-gib)")
    return asked
