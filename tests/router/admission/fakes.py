"""A placer that counts: replicas with room, adapters and a readiness, and the leases that are open on them; and a queue
over it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from router.admission.queue import LocalQueue
from router.core import Decision, Demand, Lease, Pool, Replica
from tests.router.nouns import make_demand, make_replica


@dataclass(eq=False)
class FakePlacer:
    """`rooms` is how many leases each replica takes, by model and replica id; ids in `poison` make it raise."""

    rooms: dict[str, dict[str, int]]
    adapters: dict[str, set[str]] = field(default_factory=dict)
    poison: set[str] = field(default_factory=set)
    is_ready: bool = True
    on_release: Callable[[], None] = lambda: None
    open_leases: list[Lease] = field(default_factory=list)
    placed: list[str] = field(default_factory=list)
    num_tries: int = 0

    def place(self, demand: Demand) -> Lease | None:
        self.num_tries += 1
        if demand.request.id in self.poison:
            raise ValueError("a plug-in failed")
        for name in self.rooms.get(demand.pool.model, {}):
            if self._fits(demand, name):
                self.placed.append(demand.request.id)
                return self._lease(demand, make_replica(name))
        return None

    def has_ready(self, demand: Demand) -> bool:
        return self.is_ready

    def num_open(self, model: str, name: str) -> int:
        return sum(lease.demand.pool.model == model and lease.replica.id == name for lease in self.open_leases)

    def _fits(self, demand: Demand, name: str) -> bool:
        has_adapter = demand.adapter is None or demand.adapter in self.adapters.get(name, ())
        has_room = self.num_open(demand.pool.model, name) < self.rooms[demand.pool.model][name]
        return has_adapter and has_room and name not in demand.tried

    def _lease(self, demand: Demand, replica: Replica) -> Lease:
        now = asyncio.get_running_loop().time()
        decision = Decision(replica, "fake", 0, demand.prompt.num_tokens, 0.0, {})
        lease = Lease(demand, decision, now, lambda _: None, self._released)
        self.open_leases.append(lease)
        return lease

    def _released(self, lease: Lease) -> None:
        self.open_leases.remove(lease)
        self.on_release()


@dataclass(eq=False)
class House:
    """A queue over a fake placer, wired as the app does it: each release pumps."""

    rooms: dict[str, dict[str, int]] = field(default_factory=lambda: {"m": {"a": 1}})
    adapters: dict[str, set[str]] = field(default_factory=dict)
    max_waiting: int = 100
    max_wait_s: float = 30.0
    tasks: dict[str, "asyncio.Task[Lease]"] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.placer = FakePlacer(self.rooms, self.adapters)
        self.queue = LocalQueue(self.placer, asyncio.get_running_loop().time, self.max_waiting, self.max_wait_s)
        self.placer.on_release = self.queue.pump

    def start(self, id: str, **fields: object) -> "asyncio.Task[Lease]":
        """Ask for a place in a task of its own; run `settle` for it to take its turn."""
        self.tasks[id] = asyncio.ensure_future(self.queue.place(self.demand(id, **fields)))
        return self.tasks[id]

    def demand(self, id: str, **fields: object) -> Demand:
        arrived = asyncio.get_running_loop().time()
        return make_demand(id, **{"arrived": arrived, "pool": Pool("m"), **fields})  # type: ignore[arg-type]

    async def full(self) -> Lease:
        """Take the only place of replica `a`."""
        return await self.queue.place(self.demand("first"))
