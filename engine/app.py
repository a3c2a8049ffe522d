"""Composition root: loads the model, builds each part and hands it what it needs, runs until told to stop.

Knows every part. Must not know flags (config) or anything that a part can decide for itself.
"""

import asyncio
import logging
import signal
import socket
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from engine.blocks import BlockPool
from engine.config import BLOCK_SIZE, EngineConfig
from engine.core import EngineCore
from engine.fetch import MODELS, fetch
from engine.loop import EngineLoop
from engine.model.attention import kv_dtype
from engine.model.checkpoint import open_checkpoint
from engine.model.config import ModelConfig
from engine.model.kv_cache import KVCache, bytes_per_block
from engine.model.loader import load
from engine.model.placement import device_named, dtype_named, use_threads
from engine.runner import Runner
from engine.scheduler import Scheduler
from engine.server.events import EventsError, KvEventPublisher, KvEventsConfig
from engine.server.http import Service
from engine.tokenizer import Tokenizer

log = logging.getLogger(__name__)

# Whoever stops the engine waits two seconds; the rest of them is for the process to end.
_STOP_WITHIN_S = 1.0


class StartError(Exception):
    """The engine cannot start as asked; the message is one sentence for the user."""


@dataclass(frozen=True, slots=True)
class Parts:
    """An engine that is built and not yet started; `about` describes it in a line."""

    service: Service
    about: str
    events: KvEventPublisher | None


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
    """Raises StartError, ModelError, FetchError, PlacementError, MemoryError, OSError; each says what is wrong."""
    if config.threads is not None:
        use_threads(config.threads)
    device = device_named(config.device)
    dtype = dtype_named(config.dtype, device)
    path = _model_path(config.model)
    checkpoint = open_checkpoint(path)
    model, kv_type = checkpoint.config, kv_dtype(dtype, device)
    num_blocks = _num_blocks(config, bytes_per_block(model, BLOCK_SIZE, kv_type))
    max_model_len = _max_model_len(config, model, num_blocks)
    num_host_blocks = int(config.host_kv_gib * 2**30) // bytes_per_block(model, BLOCK_SIZE, kv_type)
    cache = KVCache.allocate(model, num_blocks, BLOCK_SIZE, kv_type, device)
    host_cache = None
    if num_host_blocks:
        host_cache = KVCache.allocate(model, num_host_blocks, BLOCK_SIZE, kv_type, device_named("cpu"))
    runner = Runner(load(checkpoint, dtype, device), cache, host_cache)
    events = _events(config)
    pool = BlockPool(num_blocks, BLOCK_SIZE, num_host_blocks, records_changes=events is not None)
    scheduler = Scheduler(pool, config.max_num_seqs, config.max_num_batched_tokens)
    service = Service(
        engine=EngineLoop(EngineCore(scheduler), runner.run),
        tokenizer=Tokenizer.load(path),
        model_id=config.served_model_name or _model_id(config.model),
        root=config.model,
        vocab_size=model.vocab_size,
        max_model_len=max_model_len,
    )
    numbers = f"{str(dtype).removeprefix('torch.')}, {num_blocks} KV blocks, context {max_model_len}"
    return Parts(service, f"{service.model_id} on {device}, {numbers}", events)


async def serve(parts: Parts, listener: socket.socket) -> None:
    """Until SIGTERM or SIGINT. What is then under way ends with an error that says so. Raises StartError."""
    service = parts.service
    with ExitStack() as opened:
        if parts.events is not None:
            _open_events(parts.events, service, opened)
        await _serve_http(service, listener, parts.about)


def _open_events(events: KvEventPublisher, service: Service, opened: ExitStack) -> None:
    try:
        events.open()
    except EventsError as error:
        raise StartError(str(error)) from None
    opened.enter_context(closing(events))
    service.engine.listeners.append(events.publish)


async def _serve_http(service: Service, listener: socket.socket, about: str) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    service.engine.start()
    # aiohttp cancels a handler whose client has gone only if told to; that cancel is what frees the blocks.
    runner = web.AppRunner(
        service.app(), handler_cancellation=True, access_log=None, shutdown_timeout=_STOP_WITHIN_S / 2
    )
    await runner.setup()
    await web.SockSite(runner, listener, backlog=1024).start()
    host, port = listener.getsockname()[:2]
    log.info("ready: %s, at http://%s:%d", about, host, port)
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


def _model_id(model: str) -> str:
    path = Path(model)
    return path.stem if path.suffix == ".gguf" else path.resolve().name


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
