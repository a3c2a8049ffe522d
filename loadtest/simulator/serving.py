"""A replica as a process that only pretends to compute: the bundled engine's own server, loop, scheduler and cache
around a runner that waits as long as a real step would take, divided by a speed.

Knows the engine's parts and the step model. A word of the load generator's vocabulary is a token, so that a trace
replayed over HTTP has the lengths that it had.
"""

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from json import dumps

import tokenizers
from aiohttp import web
from tokenizers import decoders, models, pre_tokenizers

from engine.adapters import AdapterSlots
from engine.batch import Batch
from engine.blocks import BlockPool
from engine.config import BLOCK_SIZE
from engine.core import EngineCore
from engine.loop import EngineLoop
from engine.scheduler import Scheduler
from engine.server.events import EventsError, KvEventPublisher, KvEventsConfig
from engine.server.http import Service
from engine.tokenizer import Tokenizer
from loadtest.errors import LoadError
from loadtest.simulator.profile import Profile, profile
from loadtest.simulator.settings import ReplicaSettings
from loadtest.simulator.timing import batch_s
from loadtest.words import WORDS
from pointsman.chat_template import ChatTemplate

log = logging.getLogger(__name__)

_UNKNOWN = "[unknown]"
# A word for each message, then what it says: lengths are the texts' own, and one word for each message.
_TEMPLATE = "{% for message in messages %} {{ message.role }} {{ message.content }}{% endfor %}"
_STOP_WITHIN_S = 1.0


@dataclass(eq=False, slots=True)
class TimedRunner:
    """`RunBatch`: each step ends when it is due. One that begins late, as the process was busy, is not made longer."""

    profile: Profile
    block_size: int
    speed: float
    num_words: int
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    due_s: float = 0.0

    def run(self, batch: Batch) -> list[int | None]:
        """Words in an order that depends on the request alone."""
        step_s = batch_s(self.profile, batch, self.block_size) / self.speed
        now = self.clock()
        # What the last step was late is made up for, but a pause is not.
        self.due_s = (self.due_s if self.due_s > now - step_s else now) + step_s
        if self.due_s > now:
            self.sleep(self.due_s - now)
        return [self._word(chunk.sequence.request.sampling.seed, chunk.end) if chunk.samples else None
                for chunk in batch.chunks]  # fmt: skip

    def _word(self, seed: int, position: int) -> int:
        return 1 + (seed + position * 31) % (self.num_words - 1)


def word_tokenizer() -> Tokenizer:
    """Each of the load generator's words, with the space before it, is one token."""
    vocabulary = {_UNKNOWN: 0} | {f"Ġ{word}": number for number, word in enumerate(WORDS, 1)}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=_UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    return Tokenizer((), tokenizer, None, None, ChatTemplate(_TEMPLATE, {}))


def open_service(settings: ReplicaSettings) -> Service:
    """Not yet started."""
    engine_profile = profile(settings.profile)
    kv_tokens = settings.kv_tokens or engine_profile.kv_capacity_tokens
    pool = BlockPool(
        kv_tokens // BLOCK_SIZE,
        BLOCK_SIZE,
        settings.host_tokens // BLOCK_SIZE,
        records_changes=settings.kv_events is not None,
    )
    scheduler = Scheduler(
        pool, engine_profile.max_num_seqs, engine_profile.max_num_batched_tokens, AdapterSlots(settings.adapter_slots)
    )
    tokenizer = word_tokenizer()
    runner = TimedRunner(engine_profile, BLOCK_SIZE, settings.speed, len(WORDS) + 1)
    return Service(
        engine=EngineLoop(EngineCore(scheduler), runner.run),
        tokenizer=tokenizer,
        model_id=settings.model or settings.profile,
        root=settings.profile,
        vocab_size=len(WORDS) + 1,
        max_model_len=kv_tokens // BLOCK_SIZE * BLOCK_SIZE,
    )


async def serve(settings: ReplicaSettings) -> None:
    """Until SIGTERM or SIGINT. Raises LoadError where an address cannot be had."""
    service, stopping = open_service(settings), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with AsyncExitStack() as opened:
        if settings.kv_events is not None:
            _publish(service, settings, opened)
        service.engine.start()
        runner = web.AppRunner(service.app(), handler_cancellation=True, access_log=None, shutdown_timeout=0.5)
        await runner.setup()
        opened.push_async_callback(runner.cleanup)
        listener = _listen(settings)
        await web.SockSite(runner, listener, backlog=1024).start()
        host, port = listener.getsockname()[:2]
        log.info("ready: %s at %gx, http://%s:%d", settings.profile, settings.speed, host, port)
        await stopping.wait()
        service.engine.stop("the replica is shutting down")
    await asyncio.to_thread(service.engine.join, _STOP_WITHIN_S)


def _listen(settings: ReplicaSettings) -> socket.socket:
    try:
        return socket.create_server((settings.host, settings.port))
    except OSError as error:
        raise LoadError(f"cannot listen on {settings.host}:{settings.port}: {error.strerror}") from None


def _publish(service: Service, settings: ReplicaSettings, opened: AsyncExitStack) -> None:
    asked = {"enable_kv_cache_events": True, "endpoint": settings.kv_events, "replay_endpoint": settings.kv_replay}
    events = KvEventPublisher(KvEventsConfig.parse(dumps(asked)), BLOCK_SIZE)
    try:
        events.open()
    except EventsError as error:
        raise LoadError(str(error)) from None
    opened.enter_context(closing(events))
    service.engine.listeners.append(events.publish)
