"""Fakes of the replicas room: an engine server on loopback, a changing fleet, and a listener to the registry."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

from router.core import Decision, Pool, Replica, ReplicaState
from router.replicas.breaker import Breaker
from router.replicas.identify import Card, Identity
from router.replicas.member import Member
from router.replicas.registry import Registry
from router.spec import ReplicaSpec

PATIENCE_S = 30.0


class Wakes:
    """Something to wait on: `until` looks again at each `wake`, never by time."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def wake(self) -> None:
        self._event.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self._event.clear()
                await self._event.wait()


class FakeReplica(Wakes):
    """An engine server as a test wants it. A path absent from `answers` is a 404; one in `hanging` is silent."""

    def __init__(self, *models: str, adapters: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.answers: dict[str, tuple[int, object]] = {"/health": (200, "")}
        self.serve(*models, adapters=adapters or {})
        self.hanging: set[str] = set()
        self.asked: Counter[str] = Counter()
        self.keys: set[str | None] = set()
        self.port = 0
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def spec(self) -> ReplicaSpec:
        return ReplicaSpec(self.url)

    @property
    def id(self) -> str:
        return self.spec.id

    def serve(self, *models: str, adapters: Mapping[str, str]) -> None:
        entries: list[dict[str, object]] = [{"id": id, "object": "model", "parent": None} for id in models]
        entries += [{"id": id, "object": "model", "parent": parent} for id, parent in adapters.items()]
        self.answers["/v1/models"] = (200, {"object": "list", "data": entries})

    def routes(self) -> Sequence[web.RouteDef]:
        """What it takes besides questions."""
        return ()

    async def until_asked(self, path: str, times: int) -> None:
        """Wait for more questions, from now on."""
        wanted = self.asked[path] + times
        await self.until(lambda: self.asked[path] >= wanted)

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_routes(self.routes())
        app.router.add_get("/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.01, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = site.port
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.die()

    async def die(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def return_(self) -> None:
        """Listen again, on the same port."""
        await self.__aenter__()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.asked[request.path] += 1
        self.keys.add(request.headers.get("authorization"))
        self.wake()
        if request.path in self.hanging:
            await asyncio.Event().wait()
        status, body = self.answers.get(request.path, (404, "no such route"))
        if isinstance(body, str | bytes):
            return web.Response(status=status, body=body)
        return web.json_response(body, status=status)


class Fleet:
    """A Discovery whose list changes as the test says."""

    def __init__(self, *replicas: FakeReplica) -> None:
        self.specs: Sequence[ReplicaSpec] = [replica.spec for replica in replicas]
        self.error: Exception | None = None

    async def list(self) -> Sequence[ReplicaSpec]:
        if self.error is not None:
            raise self.error
        return self.specs


@dataclass(eq=False)
class Listener(Wakes):
    """Hears what a registry tells the other rooms. `log` has words of it in order."""

    log: list[str] = field(default_factory=list)
    documents: dict[str, Mapping[str, object] | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        Wakes.__init__(self)

    def on_change(self) -> None:
        self._hear("change")

    def on_lost(self, replica_id: str) -> None:
        self._hear(f"lost {replica_id}")

    def on_identified(self, replica: Replica, pool: Pool, document: Mapping[str, object] | None) -> None:
        self.documents[replica.id] = document
        self._hear(f"identified {replica.id} in {pool.model}")

    def _hear(self, words: str) -> None:
        self.log.append(words)
        self.wake()


@asynccontextmanager
async def running(registry: Registry) -> AsyncIterator[Registry]:
    """Runs a registry, as its owner would, until the block is left."""
    task = asyncio.create_task(registry.run())
    try:
        yield registry
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def make_registry(listener: Listener, discovery: Fleet | None = None, **options: object) -> Registry:
    """A registry at a pace for tests: everything is asked some hundred times a second."""
    fast = {
        "discovery_interval_s": 0.01,
        "probe_interval_s": 0.01,
        "load_interval_s": 0.01,
        "models_interval_s": 0.01,
        "cooldown_s": 0.01,
        "breaker_open_s": 0.01,
    }
    return Registry(
        discovery or Fleet(),
        listener.on_change,
        listener.on_lost,
        listener.on_identified,
        **(fast | options),  # type: ignore[arg-type]
    )


def make_identity(*models: str, adapters: Sequence[str] = (), **options: Any) -> Identity:
    cards = [Card(id) for id in models] + [Card(id, parent=models[0]) for id in adapters]
    return Identity(tuple(cards), **options)


def make_member(
    name: str = "a",
    identity: Identity | None = None,
    state: ReplicaState = ReplicaState.READY,
    kv: str | None = None,
    **breaker: float,
) -> Member:
    """A member that serves `m`, or what its identity says."""
    replica = Replica(ReplicaSpec(f"http://{name}", kv=kv), state=state)
    member = Member(replica, Breaker(random=lambda: 0.0, **breaker))  # type: ignore[arg-type]
    member.identify(identity or make_identity("m"), now=0.0)
    return member


def make_decision(replica: Replica, uncached_tokens: int = 100) -> Decision:
    prefill_s = replica.step.prefill_s(uncached_tokens, uncached_tokens)
    return Decision(replica, "test", 0, uncached_tokens, expected_wait_s=0.0, scores={}, prefill_s=prefill_s)
