"""An engine server on loopback that loads and unloads adapters as vLLM does, and says what a test wants of them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from aiohttp import web

from router.ports import BookStore
from router.replicas.registry import Registry
from router.replicas.rollout import Rollout
from router.replicas.wanted import WantedBook
from tests.router.replicas.fakes import FakeReplica, Fleet, Listener, make_registry, running


class LoraEngine(FakeReplica):
    """`missing` are paths where it finds no adapter. While `may_load` is clear, loading takes as long."""

    def __init__(self, *models: str) -> None:
        super().__init__(*(models or ("base",)))
        self.models = models or ("base",)
        self.loaded: dict[str, str] = {}
        self.orders: list[str] = []
        self.missing: set[str] = set()
        self.has_routes = True
        self.may_load = asyncio.Event()
        self.may_load.set()

    def list_adapters(self) -> None:
        """Say from now on what is loaded."""
        entries: list[dict[str, object]] = [{"id": id, "root": id, "parent": None} for id in self.models]
        entries += [{"id": name, "root": path, "parent": self.models[0]} for name, path in self.loaded.items()]
        self.answers["/v1/models"] = (200, {"object": "list", "data": entries})

    def routes(self) -> Sequence[web.RouteDef]:
        return [web.post("/v1/load_lora_adapter", self.load), web.post("/v1/unload_lora_adapter", self.unload)]

    async def load(self, request: web.Request) -> web.Response:
        asked = await request.json()
        name, path = asked["lora_name"], asked["lora_path"]
        self.orders.append(f"load {name}")
        self.wake()
        await self.may_load.wait()
        if not self.has_routes:
            return web.json_response({"detail": "Not Found"}, status=404)
        if path in self.missing:
            return _error(400, f"No adapter found for {path}")
        if name in self.loaded:
            return _error(400, f"The lora adapter '{name}' has already been loaded.")
        self.loaded[name] = path
        self.list_adapters()
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def unload(self, request: web.Request) -> web.Response:
        name = (await request.json())["lora_name"]
        self.orders.append(f"unload {name}")
        self.wake()
        if name not in self.loaded:
            return _error(404, f"The lora adapter '{name}' cannot be found.")
        del self.loaded[name]
        self.list_adapters()
        return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")


class StoreAtHand:
    """A store that nobody waits for."""

    def __init__(self) -> None:
        self.version, self.document = 0, b""

    async def load(self, known: str) -> tuple[str, bytes] | None:
        return None if known == str(self.version) else (str(self.version), self.document)

    async def save(self, document: bytes, known: str) -> str | None:
        self.version, self.document = self.version + 1, document
        return str(self.version)


class Yard:
    """Engines behind a registry that watches them, and a rollout over it."""

    def __init__(self, engines: Sequence[LoraEngine], store: BookStore) -> None:
        self.engines = engines
        self.listener = Listener()
        self.registry: Registry = make_registry(self.listener, Fleet(*engines), models_interval_s=3600.0)
        self.rollout = Rollout(self.registry.members, WantedBook(store), self.registry.clock, list_timeout_s=120.0)

    def adapters_of(self, engine: LoraEngine) -> frozenset[str]:
        """As the registry knows them."""
        return next(each.adapters for each in self.registry.replicas() if each.id == engine.id)

    async def lose(self, engine: LoraEngine) -> None:
        """It goes, and the registry has noticed."""
        await engine.die()
        await self.listener.until(lambda: f"lost {engine.id}" in self.listener.log)

    async def restart(self, engine: LoraEngine) -> None:
        """It goes, and is back with nothing loaded."""
        await self.lose(engine)
        engine.loaded.clear()
        engine.list_adapters()
        await engine.return_()

    async def until_ready(self) -> None:
        await self.listener.until(
            lambda: (
                len(self.registry.replicas()) == len(self.engines)
                and all(each.state.value == "ready" for each in self.registry.replicas())
            )
        )


@asynccontextmanager
async def opened(store: BookStore, *engines: LoraEngine, looks: bool = True) -> AsyncIterator[Yard]:
    """`looks`: the rollout runs; else a test looks itself."""
    async with AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(engine)
        yard = Yard(engines, store)
        await stack.enter_async_context(running(yard.registry))
        if looks:
            await stack.enter_async_context(looking(yard.rollout))
        await yard.until_ready()
        yield yard


@asynccontextmanager
async def looking(rollout: Rollout) -> AsyncIterator[None]:
    task = asyncio.create_task(rollout.run())
    try:
        while rollout._group is None:  # noqa: ASYNC110
            await asyncio.sleep(0)
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": "BadRequestError", "code": status}}, status=status)
