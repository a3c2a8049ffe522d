"""Composition root: opens the rooms in order, hands each what it needs, closes them in reverse. The only file that
knows all rooms; decides nothing that a room could."""

import asyncio
import contextlib
import gc
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

from aiohttp import web

from router import pages, serving
from router.adapting import Adapters
from router.admission.gate import Gate
from router.admission.queue import LocalQueue
from router.backlog import open_backlog
from router.commons import Commons
from router.config import ConfigError, Settings
from router.core import Decision, Demand, Lease, Pool, Replica, Request
from router.errand import Errand
from router.handover import Handovers
from router.learning import Learning
from router.listening import (
    LastReply,
    Served,
    names_port,
    new_dialects,
    new_responses,
    new_sockets,
    open_admin,
    open_grpc,
    open_names,
    open_passed,
)
from router.outgoing import open_handovers, open_upstream, with_handovers, with_merging
from router.placement import Placement
from router.plugins import PluginError
from router.ports import Reply
from router.prefix.caches import Caches
from router.prefix.ids import PromptIds
from router.prefix.index import BlockIndex
from router.prefix.reader import Prompts
from router.proxy import Proxy, ProxyLimits
from router.relay import Relay, RelayTimes
from router.replicas.discovery.places import open_places
from router.replicas.discovery.static import parse_replica
from router.replicas.registry import Registry
from router.retries import RetryBudget
from router.routing.presets import open_parts, open_policy
from router.telemetry.journal import Journal
from router.telemetry.metrics import Metrics
from router.telemetry.recording import open_recording
from router.tokenizing import Tokenizers
from router.transports.http import ClientConnection, DataPort, PortLimits
from router.workers import warming
from router.workers.doors import BACKLOG
from router.workers.intake import Intake
from router.workers.sharing import Sharing

Listen = Callable[[DataPort], AbstractAsyncContextManager[None]]
Watch = Callable[[], Coroutine[Any, Any, None]]

RELAY_TICK_S = 0.25
SWEEP_S = 1.0
# A place that siblings wait for is left to them for so long, before one of our own waiters takes it.
HANDOVER_S = 0.002
# A retiring process waits for a client's next request for so long, to say with its answer that it is the last.
LAST_IDLE_S = 2.0


class Router:
    """One router process; `sharing` where it is one of several on this host.

    Raises ConfigError for settings that name what is not there.
    """

    def __init__(self, settings: Settings, logger: logging.Logger, sharing: Sharing | None = None) -> None:
        self.settings = settings
        self.logger = logger
        self.sharing = sharing
        self.metrics = Metrics()
        self.recording = open_recording(settings, logger)
        self.commons = Commons(settings)
        self.keyring = self.commons.keyring
        self.gate = self._new_gate()
        self.names, self.passed = open_names(settings), open_passed(settings)
        self.relays: set[Relay] = set()
        self.index = BlockIndex(settings.index_bytes)
        self.prompts = Prompts(cache_bytes=settings.token_cache_bytes)
        self.caches = Caches(self.index, self.prompts.has_tokenizer, listens=sharing is None)
        self.tokenizers = Tokenizers(self.prompts, self.caches.knowledge, logger, settings.token_cache_bytes)
        self.registry = self._new_registry()
        self.adapters = Adapters(self.commons, self.registry, sharing)
        self.learning = Learning(self.registry, self.caches.knowledge, sharing, self.commons.store)
        self.budget = RetryBudget(settings.retry_budget_ratio)
        self.handovers: Handovers | None = None
        self.placement = self._new_placement()
        self.queue = self._new_queue()
        self.upstream = open_upstream(time.monotonic, self._specs, PromptIds(self.prompts, self.tokenizers.loaded))
        self.proxy = self._new_proxy()
        begin, clock = self.proxy.begin, time.monotonic
        self.responses = new_responses(settings, self.commons.store, self.gate, begin, clock)
        self.sockets = new_sockets(settings, begin, self.responses, clock)
        self.dialects = new_dialects(settings, begin, self._count_tokens, self.responses, clock, self.refused)
        self.backlog = open_backlog(settings, self.commons.store, begin, clock, lambda: self.queue.num_waiting)
        self.lag_s = 0.0
        self.port: DataPort | None = None
        self.drain_timeout_s = settings.drain_timeout_s
        pages.add_gauges(self)

    async def run(self, stop: asyncio.Event, on_open: Callable[[], None]) -> None:
        """Serve until `stop` is set, then drain; `on_open` is called once the ports are open.

        Raises ConfigError where a port cannot be had.
        """
        await self.run_with(stop, on_open, self._listen, self._watch_replicas)

    async def run_with(
        self,
        stop: asyncio.Event,
        on_open: Callable[[], None],
        listen: Listen,
        watch: Watch,
    ) -> None:
        """Like `run`, on what `listen` opens and with replicas as `watch` sees them."""
        async with self.commons.opened(), self._open_port() as port, listen(port), asyncio.TaskGroup() as group:
            running = [
                group.create_task(watch()),
                group.create_task(self.tokenizers.run()),
                group.create_task(self.adapters.run()),
                group.create_task(self.learning.run()),
                group.create_task(self._tick_relays()),
                group.create_task(self._sweep(port)),
                group.create_task(self.responses.runs.watch()),
            ]
            if self.backlog is not None:
                running.append(group.create_task(self.backlog.run()))
            _settle_memory()
            async with open_grpc(self.settings, self._served()):
                on_open()
                await stop.wait()
                await self._drain()
            for task in running:
                task.cancel()

    async def _watch_replicas(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.registry.run())
            group.create_task(self.caches.listen())
            group.create_task(self._warm_up())

    def models(self) -> Sequence[Mapping[str, object]]:
        """Every name that can be asked for, as /v1/models lists them."""
        return self.names.listed(self.registry.models())

    async def _warm_up(self) -> None:
        """What siblings say is taken in as what workers tell each other is."""
        intake = Intake(self.caches, lambda id: any(replica.id == id for replica in self.registry.replicas()))
        intake.dispatched(await warming.ask(self._siblings))
        self.learning.heard(await warming.ask_lessons(self._siblings))

    @property
    def is_loading(self) -> bool:
        """Is a tokenizer being loaded? Until then prompts of its pool are hashed as text."""
        return self.tokenizers.is_loading

    def retire(self) -> None:
        """Another process has taken our place: every answer from now on is the last of its connection."""
        if self.port is not None:
            self.port.begin = self._begin_last
            self.port.limits = replace(self.port.limits, idle_timeout_s=LAST_IDLE_S)
            self.sockets.drain()

    @property
    def is_deserted(self) -> bool:
        """Is no client connected?"""
        return self.port is None or not (self.port.connections or self.sockets.open)

    @contextlib.asynccontextmanager
    async def _open_port(self) -> AsyncIterator[DataPort]:
        """All that serves connections; nobody listens yet."""
        routes = serving.data_pages(self)
        engine_routes = serving.engine_routes(self, routes)
        data = web.AppRunner(routes, handler_cancellation=True, access_log=None)
        await data.setup()
        self.port = port = self._new_port(data)
        port.sockets, port.dialects, port.engine_routes = self.sockets, self.dialects, engine_routes
        port.has_jobs = self.backlog is not None
        try:
            yield port
        finally:
            self.sockets.close()
            await port.close()
            await self.upstream.close()
            if self.recording is not None:
                await self.recording.close()
            self.prompts.close()
            await data.cleanup()

    @contextlib.asynccontextmanager
    async def _listen(self, port: DataPort) -> AsyncIterator[None]:
        """One process alone: the data port and the admin port are its own."""
        settings, loop = self.settings, asyncio.get_running_loop()
        with names_port(settings.host, settings.port, "--port"):
            server = await loop.create_server(
                lambda: ClientConnection(port), settings.host, settings.port, backlog=BACKLOG
            )
        try:
            async with open_admin(serving.admin_pages(self), settings):
                yield
        finally:
            server.close()

    async def _drain(self) -> None:
        """Readiness fails and new work is refused at once; what is open may end, until the deadline."""
        self.gate.drain()
        self.sockets.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.drain_timeout_s):
                await self.gate.wait_empty()

    async def _tick_relays(self) -> None:
        while True:
            due = time.monotonic() + RELAY_TICK_S
            await asyncio.sleep(RELAY_TICK_S)
            now = time.monotonic()
            self.lag_s = now - due
            await self.proxy.tick(now)
            if self.sharing is not None and self.queue.num_waiting:
                self.queue.pump()
            self.commons.wake_sleepers(self.queue, self.registry)

    async def _sweep(self, port: DataPort) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            port.sweep()
            await self.keyring.refresh()
            self.sockets.sweep()
            self.upstream.sweep()
            if self.recording is not None:
                await self.recording.flush()
            self.caches.sweep(time.monotonic(), self.registry.replicas())
            if self.sharing is not None:
                self.sharing.desk.sweep()

    def _on_identified(self, replica: Replica, pool: Pool, document: Mapping[str, object] | None) -> None:
        self.caches.identified(replica, pool)
        self.tokenizers.identified(replica, pool, document)

    def _new_registry(self) -> Registry:
        settings = self.settings
        try:
            places = open_places(settings.replica)
            self._specs, discovery = places.examples, places.discovery
        except ValueError as error:
            raise ConfigError(f"The setting `replica` is wrong: {error}") from None
        try:
            self._siblings = [parse_replica(text) for text in settings.warm_from]
        except ValueError as error:
            raise ConfigError(f"The setting `warm_from` is wrong: {error}") from None
        return Registry(
            discovery,
            on_change=self._on_change,
            on_lost=self.caches.lost,
            on_identified=self._on_identified,
            on_suspect=self.sharing.suspected if self.sharing is not None else lambda _: None,
            on_cooled=self.sharing.cooled if self.sharing is not None else lambda _: None,
            probe_interval_s=settings.probe_interval_s,
            load_interval_s=settings.load_interval_s,
            breaker_faults=settings.breaker_faults,
            breaker_open_s=settings.breaker_open_s,
        )

    def _new_placement(self) -> Placement:
        try:
            policy = open_policy(self.settings.policy, open_parts(), random.Random(), self.settings.max_in_flight)
        except PluginError as error:
            raise ConfigError(f"The setting `policy` is wrong: {error}") from None
        registry = self.registry
        available, reserve = registry.available, registry.reserve
        if self.sharing is not None:
            available = self._available_now
            reserve = self._reserve_and_tell
        if any(spec.role is not None for spec in self._specs):
            shared = (self.index, self.budget, self.metrics, self.caches)
            policy, self.handovers = open_handovers(self.settings, policy, reserve, *shared)
            reserve = self.handovers.take
        index, clock = self.index, time.monotonic
        return Placement(available, registry.has_ready, reserve, index, policy, clock, on_device=index.match_device)

    def _new_gate(self) -> Gate:
        return self.commons.new_gate(self.sharing, self._is_busy)

    def _is_busy(self, model: str) -> bool:
        """Does anybody wait for a replica of this model?"""
        found = self.registry.find(model)
        return found is not None and self.queue.num_waiting_in(found[0]) > 0

    def _new_queue(self) -> LocalQueue:
        on_waiting = None if self.sharing is None else self._on_waiting
        return self.commons.new_queue(self.placement, self.registry, on_waiting)

    def _on_change(self) -> None:
        """Something may now be placed: here, or where a sibling's waiters have had no place for longer."""
        if self.sharing is None or not self.sharing.wake_waiting():
            self.queue.pump()
        elif self.queue.num_waiting:
            asyncio.get_running_loop().call_later(HANDOVER_S, self.queue.pump)

    def _on_waiting(self, num_waiting: int) -> None:
        """Siblings wake us from now on; what they freed a moment before they could know is looked for once more."""
        assert self.sharing is not None  # nobody else is told
        self.sharing.count_waiting(num_waiting)
        if num_waiting:
            asyncio.get_running_loop().call_soon(self.queue.pump)

    def _available_now(self, pool: Pool, now: float) -> Sequence[Replica]:
        """Two workers that look in the same microseconds may both take a replica's last place: its limit holds but for
        one request for each other worker."""
        assert self.sharing is not None  # else the registry's own is used
        self.sharing.desk.look(now)
        return self.registry.available(pool, now)

    def _reserve_and_tell(self, demand: Demand, decision: Decision) -> Lease:
        assert self.sharing is not None  # else the registry's own is used
        lease = self.registry.reserve(demand, decision)
        self.sharing.dispatched(demand, decision, lease.taken_at)
        return lease

    def _begin_last(self, request: Request, reply: Reply) -> Errand:
        return self.proxy.begin(request, LastReply(reply))

    async def known(self, model: str, deadline: float) -> tuple[Pool, str | None]:
        """Nobody waits for a replica to say what it serves for longer than for a place on it."""
        until = min(deadline, time.monotonic() + self.settings.queue_timeout_s)
        await self.adapters.until_listed(model, until)
        return await self.registry.known(model, until)

    def _new_proxy(self) -> Proxy:
        settings = self.settings
        return Proxy(
            gate=self.gate,
            find=self.registry.find,
            known=self.known,
            prompts=self.prompts,
            queue=self.queue,
            placer=self.placement,
            upstream=with_handovers(with_merging(self.upstream, self._specs, self.metrics), self.handovers),
            clock=time.monotonic,
            limits=ProxyLimits(
                max_attempts=settings.max_attempts,
                connect_timeout_s=settings.connect_timeout_s,
                first_byte_timeout_s=settings.first_byte_timeout_s,
                idle_timeout_s=settings.idle_timeout_s,
                forward_credentials=settings.forward_authorization,
            ),
            times=RelayTimes(settings.heartbeat_after_s, settings.heartbeat_interval_s),
            budget=self.budget,
            journal=Journal(self.metrics, self.logger, *self.caches.learners(), recording=self.recording),
            open_relays=self.relays,
            names=self.names,
            is_there=lambda pool: pages.is_there(self.registry, pool),
        )

    def _new_port(self, runner: web.AppRunner) -> DataPort:
        settings, make_handler = self.settings, runner.server
        assert make_handler is not None  # set by `setup`
        return DataPort(
            self.proxy.begin,
            make_handler,
            self.refused,
            time.monotonic,
            PortLimits(request_timeout_s=settings.request_timeout_s, max_body_bytes=settings.max_body_bytes),
        )

    async def _count_tokens(self, request: Request) -> int:
        pool, adapter = self.registry.find(request.model) or await self.known(request.model, request.deadline)
        return (await self.prompts.read(request, pool, adapter)).num_tokens

    def refused(self, status: int) -> None:
        """A request that never reached the proxy."""
        self.metrics.requests.add(("none", "rejected", str(status)))

    def _served(self) -> Served:
        return Served(self.proxy.begin, self.models, lambda: pages.readiness(self)[0], time.monotonic)


def _settle_memory() -> None:
    """Modules and rooms stay: the collector need not look at them again, and requests leave few cycles behind. Without
    this a full collection stops the loop for tens of milliseconds."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)
