"""Composition root: opens the rooms in order, hands each what it needs, closes them in reverse. The only file that
knows all rooms; decides nothing that a room could."""

import asyncio
import contextlib
import errno
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from importlib.metadata import version

from aiohttp import web

from router import pages
from router.admission.gate import Gate
from router.admission.queue import LocalQueue
from router.config import ConfigError, Settings
from router.core import Pool, Replica
from router.placement import Placement
from router.plugins import PluginError
from router.prefix.index import BlockIndex
from router.prefix.reader import Prompts
from router.prefix.source import SourceError, TokenizerSource
from router.proxy import Proxy, ProxyLimits
from router.relay import Relay, RelayTimes
from router.replicas.discovery.static import StaticDiscovery, parse_replica
from router.replicas.registry import Registry
from router.retries import RetryBudget
from router.routing.presets import open_parts, preset
from router.telemetry.journal import Journal
from router.telemetry.metrics import Metrics
from router.transports.http import ClientConnection, DataPort, PortLimits
from router.transports.web import Views, admin_routes, data_routes
from router.upstream.http import HttpUpstream

RELAY_TICK_S = 0.25
SWEEP_S = 1.0


class Router:
    """One router process. Raises ConfigError for settings that name what is not there."""

    def __init__(self, settings: Settings, logger: logging.Logger) -> None:
        self.settings = settings
        self.logger = logger
        self.metrics = Metrics()
        self.gate = Gate(settings.max_open_requests)
        self.relays: set[Relay] = set()
        self.index = BlockIndex(settings.index_bytes)
        self.prompts = Prompts(cache_bytes=settings.token_cache_bytes)
        self.registry = self._new_registry()
        self.placement = self._new_placement()
        self.queue = LocalQueue(self.placement, time.monotonic, settings.max_waiting, settings.queue_timeout_s)
        self.upstream = HttpUpstream(time.monotonic)
        self.proxy = self._new_proxy()
        self.lag_s = 0.0
        self._tokenizers: dict[Pool, asyncio.Task[None]] = {}
        pages.add_gauges(self)

    async def run(self, stop: asyncio.Event, on_open: Callable[[], None]) -> None:
        """Serve until `stop` is set, then drain; `on_open` is called once the ports are open.

        Raises ConfigError where a port cannot be had.
        """
        async with self._open_ports() as port, asyncio.TaskGroup() as group:
            self._group = group
            running = [
                group.create_task(self.registry.run()),
                group.create_task(self._tick_relays()),
                group.create_task(self._sweep(port)),
            ]
            on_open()
            await stop.wait()
            await self._drain()
            for task in running:
                task.cancel()

    @property
    def is_loading(self) -> bool:
        """Is a tokenizer being loaded? Until then prompts of its pool are hashed as text."""
        return any(not task.done() for task in self._tokenizers.values())

    @contextlib.asynccontextmanager
    async def _open_ports(self) -> AsyncIterator[DataPort]:
        settings, views = self.settings, self._views()
        data = web.AppRunner(data_routes(views), handler_cancellation=True, access_log=None)
        admin = web.AppRunner(admin_routes(views), handler_cancellation=True, access_log=None)
        await data.setup()
        await admin.setup()
        port = self._new_port(data)
        loop = asyncio.get_running_loop()
        try:
            with _names_port(settings.host, settings.port, "--port"):
                server = await loop.create_server(lambda: ClientConnection(port), settings.host, settings.port)
            with _names_port(settings.admin_host, settings.admin_port, "--admin-port"):
                await web.TCPSite(admin, settings.admin_host, settings.admin_port).start()
            yield port
            server.close()
        finally:
            await port.close()
            await self.upstream.close()
            self.prompts.close()
            await admin.cleanup()
            await data.cleanup()

    async def _drain(self) -> None:
        """Readiness fails and new work is refused at once; what is open may end, until the deadline."""
        self.gate.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.drain_timeout_s):
                await self.gate.wait_empty()

    async def _tick_relays(self) -> None:
        while True:
            due = time.monotonic() + RELAY_TICK_S
            await asyncio.sleep(RELAY_TICK_S)
            now = time.monotonic()
            self.lag_s = now - due
            for relay in list(self.relays):
                relay.tick(now)

    async def _sweep(self, port: DataPort) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            port.sweep()
            self.upstream.sweep()

    def _on_identified(self, replica: Replica, pool: Pool, document: Mapping[str, object] | None) -> None:
        """A pool's first replica brings its tokenizer, from the path that its spec names or from its own answer."""
        if pool in self._tokenizers or (document is None and replica.spec.tokenizer is None):
            return
        self._tokenizers[pool] = self._group.create_task(self._load_tokenizer(pool, replica, document))

    async def _load_tokenizer(self, pool: Pool, replica: Replica, document: Mapping[str, object] | None) -> None:
        path = replica.spec.tokenizer
        try:
            if path is not None:
                source = await asyncio.to_thread(TokenizerSource.from_path, path)
            else:
                source = await asyncio.to_thread(TokenizerSource.from_served, document or {})
            await asyncio.to_thread(self.prompts.configure, pool, source)
        except SourceError as error:
            fields = {"model": pool.model, "replica": replica.id, "error": str(error)}
            self.logger.warning("no tokenizer: prompts are hashed as text", extra={"fields": fields})

    def _new_registry(self) -> Registry:
        settings = self.settings
        try:
            discovery = StaticDiscovery([parse_replica(text) for text in settings.replica])
        except ValueError as error:
            raise ConfigError(f"The setting `replica` is wrong: {error}") from None
        return Registry(
            discovery,
            on_change=lambda: self.queue.pump(),
            on_lost=self.index.remove,
            on_identified=self._on_identified,
            probe_interval_s=settings.probe_interval_s,
            load_interval_s=settings.load_interval_s,
            breaker_faults=settings.breaker_faults,
            breaker_open_s=settings.breaker_open_s,
        )

    def _new_placement(self) -> Placement:
        try:
            policy = preset(self.settings.policy, open_parts(), random.Random(), self.settings.max_in_flight)
        except PluginError as error:
            raise ConfigError(f"The setting `policy` is wrong: {error}") from None
        registry = self.registry
        return Placement(registry.available, registry.has_ready, registry.reserve, self.index, policy, time.monotonic)

    def _new_proxy(self) -> Proxy:
        settings = self.settings
        return Proxy(
            gate=self.gate,
            known=self.registry.known,
            prompts=self.prompts,
            queue=self.queue,
            placer=self.placement,
            upstream=self.upstream,
            clock=time.monotonic,
            limits=ProxyLimits(
                max_attempts=settings.max_attempts,
                connect_timeout_s=settings.connect_timeout_s,
                first_byte_timeout_s=settings.first_byte_timeout_s,
                idle_timeout_s=settings.idle_timeout_s,
                forward_credentials=settings.forward_authorization,
            ),
            times=RelayTimes(settings.heartbeat_after_s, settings.heartbeat_interval_s),
            budget=RetryBudget(settings.retry_budget_ratio),
            journal=Journal(self.metrics, self.logger),
            open_relays=self.relays,
        )

    def _new_port(self, runner: web.AppRunner) -> DataPort:
        settings, make_handler = self.settings, runner.server
        assert make_handler is not None  # set by `setup`
        return DataPort(
            self.proxy.handle,
            make_handler,
            lambda status: self.metrics.requests.add(("none", "rejected", str(status))),
            time.monotonic,
            PortLimits(request_timeout_s=settings.request_timeout_s, max_body_bytes=settings.max_body_bytes),
        )

    def _views(self) -> Views:
        return Views(
            version=version("pointsman"),
            models=self.registry.models,
            live=lambda: {"loop_lag_ms": round(self.lag_s * 1e3, 1)},
            ready=lambda: pages.readiness(self),
            replicas=lambda: pages.replica_rows(self),
            set_draining=lambda id, on: pages.set_draining(self.registry, id, on),
            metrics=self.metrics.render,
        )


@contextlib.contextmanager
def _names_port(host: str, port: int, flag: str) -> Iterator[None]:
    """A port that cannot be had is a wrong setting."""
    try:
        yield
    except OSError as error:
        reason = "is already in use" if error.errno == errno.EADDRINUSE else f"cannot be listened on ({error.strerror})"
        raise ConfigError(f"The address {host}:{port} {reason}; choose another with {flag}.") from None
