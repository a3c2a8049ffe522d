"""What an operator asks of a running engine: adapters come and go, and it sleeps and wakes.

Knows the engine's loop and what has to happen in which order. Must not know tensors, files' formats, HTTP or gRPC.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Generic

from engine.adapters import Adapter, AdapterError, ReadAdapter, Weights
from engine.loop import EngineLoop

log = logging.getLogger(__name__)

SLEEP_LEVELS = (1, 2)


@dataclass(eq=False, slots=True)
class Control(Generic[Weights]):
    """`read` blocks. `keep` remembers an adapter's weights as long as the adapter is there; `sleep_runner` (told a
    level) and `wake_runner` free and restore memory. These three run between two steps."""

    engine: EngineLoop
    model_id: str
    read: Callable[[Path], ReadAdapter[Weights]]
    keep: Callable[[Adapter, Weights], None]
    sleep_runner: Callable[[int], None]
    wake_runner: Callable[[], None]
    _changing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_asleep(self) -> bool:
        return self.engine.core.is_asleep

    def load_before_start(self, name: str, path: str) -> Adapter:
        """Before the engine steps; it stays until it is unloaded. Raises AdapterError."""
        self._check_name(name)
        return self._add(name, path, self.read(Path(path)), is_pinned=True)

    async def load_adapter(self, name: str, path: str) -> Adapter:
        """The least recently used leaves if there is no more room. Raises AdapterError; EngineError when stopped."""
        self._check_name(name)
        async with self._changing:
            self.engine.core.scheduler.adapters.check_new(name)
            found = await asyncio.to_thread(self.read, Path(path))
            return await self.engine.call(partial(self._add, name, path, found))

    async def unload_adapter(self, name: str) -> None:
        """What has begun with it goes on. Raises UnknownAdapter; EngineError when stopped."""
        await self.engine.call(partial(self._remove, name))

    async def sleep(self, level: int) -> None:
        """Raises ValueError for a level that there is not, EngineError when stopped."""
        if level not in SLEEP_LEVELS:
            raise ValueError(f"level must be 1 or 2, not {level}")
        async with self._changing:
            await self.engine.call(partial(self._fall_asleep, level))

    async def wake(self) -> None:
        """Nothing happens if it does not sleep. Raises what the weights' loading raises, and sleeps on then."""
        async with self._changing:
            await self.engine.call(self._awake)

    def _check_name(self, name: str) -> None:
        if name in ("", self.model_id):
            raise AdapterError(f"lora_name {name!r} is the model's own" if name else "lora_name is empty")

    def _add(self, name: str, path: str, found: ReadAdapter[Weights], *, is_pinned: bool = False) -> Adapter:
        scheduler = self.engine.core.scheduler
        adapters = scheduler.adapters
        adapters.check_new(name)
        if (crowded_out := adapters.crowd_out()) is not None:
            log.info("the adapter %s leaves host memory for %s (--max-cpu-loras)", crowded_out.name, name)
            scheduler.pool.forget_adapter(crowded_out.load)
        adapter = Adapter(name, path, found.rank, found.digest, adapters.next_load(), is_pinned)
        adapters.add(adapter)
        self.keep(adapter, found.weights)
        return adapter

    def _remove(self, name: str) -> None:
        scheduler = self.engine.core.scheduler
        scheduler.pool.forget_adapter(scheduler.adapters.remove(name).load)

    def _fall_asleep(self, level: int) -> None:
        self.engine.core.sleep(level)
        self.sleep_runner(level)

    def _awake(self) -> None:
        if self.is_asleep:
            self.wake_runner()
            self.engine.core.wake()
