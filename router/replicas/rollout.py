"""Adapters brought to all replicas of their base model, and kept there: a state for each replica.

Knows members, the book of what is wanted, and the orders by which it comes about; knows no clients. What a replica
lists is what it has: states of our own are only of what is under way or failed.

    WAITING   it is not ready, or its turn has not come
    LOADING   told to load; the answer is not there yet
    LOADED    it lists the adapter
    FAILED    it did not load it, with its reason; it is told again, later each time
    LEAVING   it lists an adapter that is wanted no more, and has been told or will be
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import aiohttp

from router.core import ReplicaState
from router.ports import Clock
from router.replicas.fetch import open_session
from router.replicas.member import Member
from router.replicas.orders import Failure, Order, Verb, give
from router.replicas.wanted import Adapter, WantedBook

# Adapters may come from far.
ORDER_TIMEOUT_S = 120.0
LOOK_S = 1.0
# After a failure it is told again, then after twice as long each time.
FIRST_RETRY_S, MOST_RETRY_S = 2.0, 60.0
# What it has been told to load should soon be in its list.
LIST_TIMEOUT_S, LIST_POLL_S = 20.0, 0.01
log = logging.getLogger(__name__)


class AdapterState(StrEnum):
    WAITING = "waiting"
    LOADING = "loading"
    LOADED = "loaded"
    FAILED = "failed"
    LEAVING = "leaving"


_MOVES = {
    AdapterState.WAITING: {AdapterState.LOADING, AdapterState.LOADED, AdapterState.LEAVING},
    AdapterState.LOADING: {AdapterState.LOADED, AdapterState.FAILED, AdapterState.WAITING},
    AdapterState.LOADED: {AdapterState.WAITING, AdapterState.LEAVING, AdapterState.LOADING},
    AdapterState.FAILED: {AdapterState.LOADING, AdapterState.LOADED, AdapterState.WAITING, AdapterState.LEAVING},
    AdapterState.LEAVING: {AdapterState.WAITING, AdapterState.LOADED, AdapterState.FAILED},
}


@dataclass(frozen=True, slots=True)
class Standing:
    """Where an adapter stands on a replica; `is_refused`: the replica says that the order itself is wrong."""

    replica: str
    state: AdapterState
    reason: str = ""
    is_refused: bool = False


@dataclass(eq=False, slots=True)
class _Progress:
    """What we told a replica of one adapter. `lost_at`: when it had last been lost then; after a loss nothing holds."""

    state: AdapterState
    lost_at: float
    reason: str = ""
    is_refused: bool = False
    num_failures: int = 0
    again_at: float = 0.0

    def move(self, state: AdapterState) -> None:
        if state not in _MOVES[self.state]:
            raise ValueError(f"an adapter goes from {self.state} to {state}")
        self.state = state


@dataclass(eq=False, slots=True)
class Rollout:
    """`leads()`: of several processes before the same replicas, is it this one that looks after them? `on_relist` is
    told of a replica that should be asked anew what it serves."""

    members: Callable[[], Sequence[Member]]
    book: WantedBook
    clock: Clock
    leads: Callable[[], bool] = lambda: True
    on_relist: Callable[[Member], None] = Member.relist_soon
    order_timeout_s: float = ORDER_TIMEOUT_S
    list_timeout_s: float = LIST_TIMEOUT_S
    _progress: dict[tuple[str, str], _Progress] = field(default_factory=dict, init=False)
    _running: "dict[tuple[str, str], asyncio.Task[None]]" = field(default_factory=dict, init=False)
    _group: asyncio.TaskGroup | None = field(default=None, init=False)
    _session: aiohttp.ClientSession | None = field(default=None, init=False)
    _is_failing: bool = field(default=False, init=False)

    async def run(self) -> None:
        """Keep the replicas as they are wanted, until cancelled."""
        async with open_session() as session, asyncio.TaskGroup() as group:
            self._session, self._group = session, group
            try:
                while True:
                    await self.look()
                    await asyncio.sleep(LOOK_S)
            finally:
                self._session = self._group = None

    async def look(self) -> None:
        """Read the book, and tell the replicas that are not as they should be. Does not wait for their answers."""
        await self._refresh()
        if not self.leads():
            return
        for member in self.members():
            for adapter in self._missing(member):
                self._start_load(member, adapter)
            for name in self._left_over(member):
                self._start_unload(member, name)

    async def load(self, adapter: Adapter, *, again: bool = False) -> Sequence[Standing]:
        """Have all replicas of its model load it, now and when they come. `again`: those that have it, too.

        What nobody could load, and the replicas say that it is wrong, is wanted no more. Raises WantedUnavailable.
        """
        await self.book.want(adapter)
        ready = [member for member in self._of(adapter.model) if _is_ready(member)]
        told = [member for member in ready if again or adapter.name not in member.replica.adapters]
        await self._wait([self._start_load(member, adapter, again=again, at_once=True) for member in told])
        loaded = [member for member in told if self._state(member, adapter.name) is not AdapterState.FAILED]
        await self._until(lambda: all(_lists(member, adapter.name) for member in loaded))
        found = self.standings(adapter.name)
        if found and all(each.state is AdapterState.FAILED for each in found):
            await self.book.take_back(adapter.name)
            self._forget(adapter.name)
        return found

    async def unload(self, name: str, model: str) -> Sequence[Standing]:
        """Have all replicas that list it unload it, now and when they come back. Raises WantedUnavailable."""
        await self.book.forget(name, model)
        told = [member for member in self._of(model) if _lists(member, name) and _is_ready(member)]
        await self._wait([self._start_unload(member, name, at_once=True) for member in told])
        failed = [member for member in told if self._state(member, name) is AdapterState.FAILED]
        await self._until(lambda: not any(_lists(member, name) for member in told if member not in failed))
        return [self._standing(member, name) for member in self._of(model) if _lists(member, name)]

    async def hasten(self, name: str) -> None:
        """Somebody asks for an adapter that no replica lists: one of those that may have it is told now. By the newest
        book: a sibling may have unloaded it a moment ago."""
        if not await self._refresh():
            return
        adapter, now = self.book.wanted.adapters.get(name), self.clock()
        ready = [member for member in self._of(adapter.model) if _is_ready(member)] if adapter is not None else []
        coming = (AdapterState.LOADED, AdapterState.LOADING)
        if adapter is None or any(self._state(member, name) in coming for member in ready):
            return
        able = [member for member in ready if self._has_room(member, name) or self._may_load(member, name, now)]
        if able:
            self._start_load(min(able, key=lambda member: member.replica.in_flight), adapter)

    def standings(self, name: str) -> Sequence[Standing]:
        """Of a wanted adapter, on each replica of its model."""
        adapter = self.book.wanted.adapters.get(name)
        return [] if adapter is None else [self._standing(member, name) for member in self._of(adapter.model)]

    def on_replica(self, replica_id: str) -> Mapping[str, Standing]:
        """Of each wanted adapter there."""
        member = next((each for each in self.members() if each.replica.id == replica_id), None)
        if member is None or member.identity is None:
            return {}
        model = member.identity.models[0]
        names = [name for name, adapter in self.book.wanted.adapters.items() if adapter.model == model]
        return {name: self._standing(member, name) for name in [*names, *self._left_over(member)]}

    async def _refresh(self) -> bool:
        """Is what we know of the book the newest?"""
        try:
            await self.book.refresh()
        except Exception as error:
            if not self._is_failing:
                log.warning("which adapters are wanted cannot be read, what is known stands: %s", error)
            self._is_failing = True
        else:
            self._is_failing = False
        return not self._is_failing

    # what there is to do

    def _missing(self, member: Member) -> Iterable[Adapter]:
        if not _is_ready(member) or member.identity is None:
            return ()
        model, now = member.identity.models[0], self.clock()
        wanted = [each for each in self.book.wanted.adapters.values() if each.model == model]
        return [each for each in wanted if not _lists(member, each.name) and self._may_load(member, each.name, now)]

    def _left_over(self, member: Member) -> Iterable[str]:
        if not self.book.wanted.gone or not _is_ready(member) or member.identity is None:
            return ()
        model, now = member.identity.models[0], self.clock()
        return [
            name
            for name in member.replica.adapters
            if self.book.is_gone(name, model) and self._may_unload(member, name, now)
        ]

    def _may_load(self, member: Member, name: str, now: float) -> bool:
        """What we loaded and it lists no more made room for others there: it is loaded again when it is asked for."""
        progress = self._current(member, name)
        if progress is None:
            return True
        return progress.state in (AdapterState.FAILED, AdapterState.WAITING) and progress.again_at <= now

    def _has_room(self, member: Member, name: str) -> bool:
        """It had it once."""
        progress = self._current(member, name)
        return progress is not None and progress.state is AdapterState.LOADED

    def _may_unload(self, member: Member, name: str, now: float) -> bool:
        progress = self._current(member, name)
        return progress is None or progress.state is AdapterState.LOADED or progress.again_at <= now

    def _of(self, model: str) -> Sequence[Member]:
        return [each for each in self.members() if each.identity is not None and each.identity.models[0] == model]

    # orders

    def _start_load(
        self, member: Member, adapter: Adapter, *, again: bool = False, at_once: bool = False
    ) -> "asyncio.Task[None] | None":
        orders = [Order(adapter.name, adapter.path)]
        if again and _lists(member, adapter.name):
            orders.insert(0, Order(adapter.name))
        return self._start(member, orders, at_once=at_once)

    def _start_unload(self, member: Member, name: str, *, at_once: bool = False) -> "asyncio.Task[None] | None":
        return self._start(member, [Order(name)], at_once=at_once)

    def _start(self, member: Member, orders: Sequence[Order], *, at_once: bool) -> "asyncio.Task[None] | None":
        """One at a time for an adapter on a replica: who asks for another meanwhile waits for that one."""
        last = orders[-1]
        key = (member.replica.id, last.lora_name)
        if (running := self._running.get(key)) is not None:
            return running
        if self._group is None or self._session is None:
            return None
        progress = self._current(member, last.lora_name)
        if progress is None or at_once:
            state = AdapterState.LOADED if _lists(member, last.lora_name) else AdapterState.WAITING
            progress = self._progress[key] = _Progress(state, member.lost_at)
        progress.move(AdapterState.LOADING if last.verb is Verb.LOAD else AdapterState.LEAVING)
        task = self._running[key] = self._group.create_task(self._carry_out(self._session, member, progress, orders))
        task.add_done_callback(lambda _: self._running.pop(key, None))
        return task

    async def _carry_out(
        self, session: aiohttp.ClientSession, member: Member, progress: _Progress, orders: Sequence[Order]
    ) -> None:
        name, verb = orders[-1].lora_name, orders[-1].verb
        failure = await give(session, member.replica, orders, self.order_timeout_s)
        if failure is not None:
            self._failed(progress, failure)
            log.warning("%s does not %s the adapter %s: %s", member.replica.id, verb, name, failure.reason)
        else:
            # Should its list still hold what was unloaded after so long, it is told once more.
            progress.reason, progress.num_failures, progress.again_at = "", 0, self.clock() + MOST_RETRY_S
            progress.move(AdapterState.LOADED if verb is Verb.LOAD else AdapterState.WAITING)
            log.info("%s has been told to %s the adapter %s", member.replica.id, verb, name)
        self.on_relist(member)

    def _failed(self, progress: _Progress, failure: Failure) -> None:
        progress.move(AdapterState.FAILED)
        progress.reason, progress.is_refused = failure.reason, failure.is_refused
        progress.again_at = self.clock() + min(FIRST_RETRY_S * 2.0**progress.num_failures, MOST_RETRY_S)
        progress.num_failures += 1

    async def _wait(self, tasks: "Sequence[asyncio.Task[None] | None]") -> None:
        """Whoever waits may be cancelled; the orders go on."""
        running = [task for task in tasks if task is not None]
        if running:
            await asyncio.wait(running)

    async def _until(self, holds: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(self.list_timeout_s):
                while not holds():  # noqa: ASYNC110  (lists come from the watch, which tells many)
                    await asyncio.sleep(LIST_POLL_S)
        except TimeoutError:
            log.warning("a replica does not list what it said that it has done")

    # what is known

    def _current(self, member: Member, name: str) -> _Progress | None:
        """None where nothing was told, or it was lost since."""
        progress = self._progress.get((member.replica.id, name))
        if progress is not None and progress.lost_at != member.lost_at and progress.state is not AdapterState.LOADING:
            del self._progress[member.replica.id, name]
            return None
        return progress

    def _state(self, member: Member, name: str) -> AdapterState:
        return self._standing(member, name).state

    def _standing(self, member: Member, name: str) -> Standing:
        replica, progress = member.replica, self._current(member, name)
        if progress is not None and progress.state in (AdapterState.LOADING, AdapterState.LEAVING, AdapterState.FAILED):
            if progress.state is AdapterState.FAILED and name in self.book.wanted.adapters and _lists(member, name):
                return Standing(replica.id, AdapterState.LOADED)
            return Standing(replica.id, progress.state, progress.reason, progress.is_refused)
        if not _lists(member, name) or not _is_ready(member):
            return Standing(replica.id, AdapterState.WAITING, self._why_waiting(member, progress))
        if name not in self.book.wanted.adapters:
            return Standing(replica.id, AdapterState.LEAVING)
        return Standing(replica.id, AdapterState.LOADED, self._doubt(member, self.book.wanted.adapters[name]))

    def _why_waiting(self, member: Member, progress: _Progress | None) -> str:
        if not _is_ready(member):
            return f"it is {member.replica.state.value}"
        had_it = progress is not None and progress.state is AdapterState.LOADED
        return "it made room for others there" if had_it else ""

    def _doubt(self, member: Member, adapter: Adapter) -> str:
        """An adapter of this name that somebody loaded from elsewhere."""
        cards = member.identity.cards if member.identity is not None else ()
        root = next((card.root for card in cards if card.id == adapter.name), None)
        return f"it says that it was loaded from {root}" if root and root not in (adapter.path, adapter.name) else ""

    def _forget(self, name: str) -> None:
        for key in [key for key in self._progress if key[1] == name and key not in self._running]:
            del self._progress[key]

    def __repr__(self) -> str:
        return f"<Rollout of {len(self.book.wanted.adapters)} adapters, {len(self._running)} orders open>"


def _is_ready(member: Member) -> bool:
    return member.replica.state in (ReplicaState.READY, ReplicaState.DRAINING)


def _lists(member: Member, name: str) -> bool:
    return name in member.replica.adapters
