"""Places of all pools, shared with other routers through Redis: one loop a pool that takes its turns. Knows the store
and when a turn is due; what a turn says is in `turns.py`, who is placed where is the queue's matter.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from router.admission.bands import BandTerms
from router.admission.capacity import Room
from router.admission.turns import Mode, Turns
from router.admission.waiters import Waiter
from router.core import Lease
from router.ports import Clock
from router.store import names
from router.store.connection import Script, Store
from router.store.errors import StoreAway

# Between turns: where somebody waits, where places are held, where nobody shares them, and at the least even when
# something happens.
CONTENDED_S, FREE_S, ALONE_S, LEAST_S = 0.005, 0.05, 0.25, 0.002
# A pool that nobody asked for is left alone after so long, and its places given back.
IDLE_S = 60.0
# After Redis came back routers register over so long, each at its own moment.
SPREAD_S = 0.2
AFTER_FAULT_S = 5.0
log = logging.getLogger(__name__)

TURN = Script((Path(__file__).parent / "lua" / "turn.lua").read_text())


@dataclass(eq=False, slots=True)
class PoolRation:
    """One pool's. `capacity()` is what the replicas take together; `on_granted(waiter)` places it, False where it fits
    no place now; `on_open()`: the local order may place again."""

    model: str
    store: Store
    turns: Turns
    clock: Clock
    capacity: Callable[[], Room]
    on_granted: Callable[[Waiter[Any]], bool]
    on_open: Callable[[], None]
    random: Callable[[], float]
    num_turns: int = 0
    _due: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _last_turn_at: float = field(default=0.0, init=False)
    _last_use_at: float = field(default=0.0, init=False)

    def may_start(self) -> bool:
        """May a request that nobody comes before start at once? Where not, more places are asked for."""
        if self.turns.may_start:
            return True
        self._due.set()
        return False

    @property
    def is_ordering(self) -> bool:
        """Somebody waits somewhere: turns say who is next."""
        return self.turns.mode is Mode.CONTENDED

    def join(self, waiter: Waiter[Any], tokens: float) -> None:
        self.turns.join(waiter, tokens)
        self._due.set()

    def leave(self, waiter: Waiter[Any]) -> None:
        """Later calls do nothing."""
        self.turns.leave(waiter)
        if self.turns.has_leaves:
            self._due.set()  # else its turn could come, and its place stay free

    def poke(self) -> None:
        """Something changed that the next turn should say soon."""
        self._due.set()

    def took(self, lease: Lease) -> None:
        """One of our places is in use until this lease ends."""
        self.turns.take(round(lease.charged_tokens))
        self._last_use_at = self.clock()
        lease.when_released(self._gave)
        if self.turns.is_short:
            self._due.set()

    def _gave(self, lease: Lease) -> None:
        self.turns.give(round(lease.charged_tokens))
        if self.turns.mode is Mode.CONTENDED:
            self._due.set()

    async def run(self) -> None:
        """Take turns until cancelled."""
        while True:
            await self._wait_up()
            self.turns.rejoin()
            self.turns.is_idle = False
            self._last_use_at = self.clock()
            await asyncio.sleep(SPREAD_S * self.random())
            try:
                while True:
                    await self._turn()
                    await self._wait_due()
            except StoreAway:
                self.turns.lose()
                self.on_open()
            except Exception:
                log.exception("turns at the pool of %s failed: it goes on alone for a while", self.model)
                self.turns.lose()
                self.on_open()
                await asyncio.sleep(AFTER_FAULT_S)

    async def _turn(self) -> None:
        self._due.clear()
        began = self._last_turn_at = self.clock()
        arguments = self.turns.compose(began, self.capacity())
        prefix = names.pool(self.model)
        keys = [f"{prefix}{name}" for name in KEYS] + [prefix]
        answer = await self.store.run(TURN, keys, arguments)
        self.num_turns += 1
        granted = self.turns.apply(answer, began, self.clock())
        for waiter in granted:
            if waiter.has_left or self.on_granted(waiter):
                self.turns.leave(waiter)
            else:
                self.turns.put_off(waiter, self.clock())
        if self.turns.mode is Mode.FREE:
            self.on_open()
        elif self.turns.mode is Mode.JOINING or self.turns.held > self.turns.used or granted:
            self._due.set()  # what was fenced, is held and not used, or has been placed, is told at once

    async def _wait_due(self) -> None:
        turns = self.turns
        if turns.epoch == 0:
            return
        is_busy = turns.num_waiting > 0
        if not is_busy and not turns.used and self.clock() - self._last_use_at > IDLE_S:
            turns.is_idle = True
            await self._turn()
            await self._due.wait()
            turns.is_idle = False
            return
        quiet_s = FREE_S if turns.num_routers > 1 else ALONE_S
        try:
            async with asyncio.timeout(CONTENDED_S if is_busy else quiet_s):
                await self._due.wait()
        except TimeoutError:
            return
        await asyncio.sleep(max(0.0, self._last_turn_at + LEAST_S - self.clock()))

    async def _wait_up(self) -> None:
        while not self.store.is_up:
            self._due.clear()
            await self._due.wait()


KEYS = ("pool", "routers", "flows:0", "flows:1", "flows:2", "flows:3", "counters", "tenants", "claims")


@dataclass(eq=False, slots=True)
class Ration:
    """All pools. `capacity(model)`, `granted(model, waiter)` and `reopened(model)` are as in `PoolRation`. `opened`
    owns the pools' loops; pools are added as they are asked for."""

    store: Store
    router: str
    terms: BandTerms
    clock: Clock
    random: Callable[[], float]
    capacity: Callable[[str], Room]
    granted: Callable[[str, Waiter[Any]], bool] = lambda *_: False
    reopened: Callable[[str], None] = lambda _: None
    pools: dict[str, PoolRation] = field(default_factory=dict, init=False)
    _is_open: bool = field(default=False, init=False)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list, init=False)

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Take turns until the block is left."""
        self._is_open = True
        self._tasks = [asyncio.create_task(pool.run()) for pool in self.pools.values()]
        try:
            yield
        finally:
            self._is_open = False
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._leave()

    def pool(self, model: str) -> PoolRation:
        pool = self.pools.get(model)
        if pool is None:
            pool = self.pools[model] = PoolRation(
                model,
                self.store,
                Turns(self.router, self.terms),
                self.clock,
                lambda: self.capacity(model),
                lambda waiter: self.granted(model, waiter),
                lambda: self.reopened(model),
                self.random,
            )
            if self._is_open:
                self._tasks.append(asyncio.create_task(pool.run()))
        return pool

    async def _leave(self) -> None:
        """Others need not wait for our leases to run out."""
        with contextlib.suppress(StoreAway):
            for pool in self.pools.values():
                prefix = names.pool(pool.model)
                await self.store.call("HDEL", prefix + "routers", self.router)
                await self.store.call("DEL", f"{prefix}grants:{self.router}")

    def store_changed(self) -> None:
        """It came up, or was lost."""
        for pool in self.pools.values():
            pool.poke()

    @property
    def num_routers(self) -> int:
        """As many as are known to share any pool."""
        return max([pool.turns.num_routers for pool in self.pools.values()], default=1)

    def __repr__(self) -> str:
        return f"<Ration of {len(self.pools)} pools over {self.store!r}>"
