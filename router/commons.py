"""What this router shares with others, as far as it lets in and orders requests: keys, limits, places. Composes the
admission room over a store, and starts the private Redis where there is no other; decides nothing.
"""

import contextlib
import logging
import os
import random
import re
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

from router.admission.allotments import Allotments
from router.admission.capacity import Capacity
from router.admission.gate import Gate
from router.admission.opening import band_terms, check_addresses, open_keyring, state_folder
from router.admission.queue import LocalQueue
from router.admission.ration import Ration
from router.config import Settings
from router.ports import Placer
from router.replicas.registry import Registry
from router.replicas.waking import Waker
from router.store.connection import Store
from router.store.embedded import EmbeddedServer, NoServer, find_server
from router.workers.sharing import Sharing

EMBEDDED, NONE = "embedded", "none"
log = logging.getLogger(__name__)


def embedded_server(settings: Settings) -> EmbeddedServer | None:
    """The private server that the settings ask for; None, and one line in the log, where none can be had."""
    if settings.redis != EMBEDDED:
        return None
    try:
        return EmbeddedServer(_folder(settings), find_server())
    except NoServer as error:
        log.warning("queues and limits are this process's own: %s", error)
        return None


class Commons:
    """Raises ConfigError for settings that are wrong. `opened` connects; what is shared is used once it is there."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.server = embedded_server(settings)
        self.store = self._new_store()
        folder = state_folder(settings, os.environ)
        self.is_private = is_private = self.store is None or self.store.url == EmbeddedServer(_folder(settings)).url
        self.keyring = open_keyring(settings, folder, None if is_private else self.store)
        check_addresses(settings, self.keyring.callers)
        self.terms = band_terms(settings)
        self.capacity = Capacity(settings.max_in_flight)
        self.ration: Ration | None = None
        self.allotments: Allotments | None = None
        self.waker: Waker | None = None

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            if self.server is not None:
                await stack.enter_async_context(self.server.opened())
            if self.store is not None and self.ration is not None:
                await stack.enter_async_context(self.store.opened())
                await stack.enter_async_context(self.ration.opened())
            if self.allotments is not None:
                await stack.enter_async_context(self.allotments.opened())
            try:
                yield
            finally:
                if self.waker is not None:
                    await self.waker.close()

    @property
    def status(self) -> Mapping[str, object]:
        """For the readiness page."""
        if self.store is None:
            return {"state": "none"}
        found: dict[str, object] = {"state": self.store.state.value}
        if self.store.reason:
            found["reason"] = self.store.reason
        if self.store.is_up:
            found["version"] = self.store.version
            found["routers"] = 1 if self.ration is None else self.ration.num_routers
        return found

    def new_gate(self, sharing: Sharing | None, is_busy: Callable[[str], bool]) -> Gate:
        most, callers = self.settings.max_open_requests, self.keyring.callers
        if sharing is None:
            return Gate(most, callers=callers, is_busy=is_busy)
        return Gate(most, sharing.desk.num_open_elsewhere, sharing.count_open, callers, is_busy)

    def new_queue(self, placer: Placer, registry: Registry, on_waiting: Callable[[int], None] | None) -> LocalQueue:
        settings = self.settings
        if self.store is not None:
            self.ration = ration = Ration(
                self.store,
                router_name(),
                self.terms,
                time.monotonic,
                random.random,
                lambda model: self.capacity.of(model, registry.replicas()),
            )
            self.store.on_change = lambda _: ration.store_changed()
            callers = self.keyring.callers
            self.allotments = Allotments(self.store, ration.router, callers, time.monotonic, lambda: ration.num_routers)
        return LocalQueue(
            placer,
            time.monotonic,
            settings.max_waiting,
            settings.queue_timeout_s,
            on_waiting=on_waiting,
            terms=self.terms,
            ration=self.ration,
        )

    def wake_sleepers(self, queue: LocalQueue, registry: Registry) -> None:
        """Where requests wait and no replica is ready, one that sleeps shall wake. Called a few times a second."""
        if not queue.num_waiting:
            return
        if self.waker is None:
            self.waker = Waker(time.monotonic, registry.woken)
        for model in queue.unready_waiting():
            self.waker.wake_one(
                replica for replica in registry.replicas() if replica.pool is not None and replica.pool.model == model
            )

    def _new_store(self) -> Store | None:
        if self.server is not None:
            return Store(self.server.url)
        return Store(self.settings.redis) if self.settings.redis not in (EMBEDDED, NONE) else None


def router_name() -> str:
    """No two processes have the same."""
    host = re.sub(r"[^\w.-]", "-", socket.gethostname())[:40]
    return f"{host}:{os.getpid()}:{secrets.token_hex(3)}"


def _folder(settings: Settings) -> Path:
    """One for each data port: routers that are no company of each other do not share their queues."""
    return state_folder(settings, os.environ) / f"redis-{settings.port}"
