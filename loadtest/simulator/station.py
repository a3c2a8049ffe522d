"""One router of a simulated fleet: the router's own registry, caches, policy, placement and queue, wired as its
composition root wires them, on virtual time. Knows the router's cores; knows no engine and no workload."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from loadtest.simulator.clock import VirtualLoop
from loadtest.simulator.job import Job
from router.admission.queue import LocalQueue
from router.core import Demand, Lease, Load, Outcome, Pool, Replica, ReplicaState, Request, Standing, Surface, Usage
from router.errors import PointsmanError
from router.handover import Handovers
from router.placement import Placement
from router.ports import Policy
from router.prefix.caches import Caches
from router.prefix.index import BlockIndex
from router.replicas.identify import Card, Identity
from router.replicas.member import Member
from router.replicas.registry import Registry
from router.replicas.sighting import Sighting
from router.retries import RetryBudget
from router.routing.moving import Moving
from router.routing.presets import open_parts, open_policy
from router.routing.splitting import Splitting
from router.spec import ReplicaSpec, Role
from router.telemetry.metrics import Metrics

MODEL = "simulated"
# As `router/config.py` has them, but for the waits: what a policy's queue does is to be seen, not cut off.
MAX_IN_FLIGHT = 256
MAX_WAITING = 1_000_000
MAX_WAIT_S = 600.0
KV_TRANSFER_TOKEN_S = 0.00005
# One whose handshake the router knows.
ENGINE = "pointsman"
# All the memory that it may want: what a bound costs is measured elsewhere.
INDEX_BYTES = 2**40
SWEEP_S = 1.0


@dataclass(eq=False, slots=True)
class Station:
    """`send(job, lease)` is called once a job has its place, `refused(job)` once it is told that it gets none, and
    `before_look()` before the fleet is looked at. `is_fair` false: all wait in one order, whoever they are of.
    `handovers` is there where replicas have roles."""

    loop: VirtualLoop
    registry: Registry
    placement: Placement
    queue: LocalQueue
    caches: Caches
    send: Callable[[Job, Lease], None]
    refused: Callable[[Job], None]
    is_fair: bool = True
    handovers: Handovers | None = None
    pool: Pool = field(init=False)
    before_look: Callable[[], None] = field(default=lambda: None)
    _members: dict[str, Member] = field(init=False)

    def __post_init__(self) -> None:
        self.pool, _ = self.registry.resolve(MODEL)
        self._members = {member.replica.id: member for member in self.registry.members()}
        self.placement.available = self._available

    def accept(self, job: Job) -> None:
        """A request came in at this router."""
        self.loop.start(self._place(job))

    def report(self, replica_id: str, load: Load) -> bool:
        """Take in a replica's own report; True where it shows less foreign work than the last."""
        member = self._members[replica_id]
        return member.report(load, member.replica.in_flight)

    def hear(self, replica_id: str, load: Load) -> None:
        """A replica's metrics page was read; those who wait may have a place now."""
        if self.report(replica_id, load):
            self.queue.pump()

    def ended(self, lease: Lease, num_cached_tokens: int, num_output_tokens: int) -> None:
        """The last byte came, and with it the usage."""
        lease.output_tokens = num_output_tokens
        lease.release(Outcome.OK)
        usage = Usage(lease.demand.prompt.num_tokens, num_cached_tokens, num_output_tokens)
        self.caches.knowledge.answered(lease, usage, self.loop.now)

    def sweep(self) -> None:
        """Due once a second."""
        self.caches.sweep(self.loop.now, self.registry.replicas())

    def _available(self, pool: Pool, now: float) -> Sequence[Replica]:
        self.before_look()
        return self.registry.available(pool, now)

    async def _place(self, job: Job) -> None:
        try:
            lease = await self.queue.place(self._demand(job))
        except PointsmanError:
            job.is_refused = True
            self.refused(job)
            return
        job.placed_s = self.loop.now
        job.replica_id, job.num_matched_tokens = lease.replica.id, lease.decision.matched_tokens
        self.send(job, lease)

    def _demand(self, job: Job) -> Demand:
        ask = job.ask
        request = Request(
            id=str(ask.number),
            surface=Surface.COMPLETIONS,
            model=ask.adapter or MODEL,
            body=b"",
            arrived=job.arrived_s,
            deadline=job.arrived_s + MAX_WAIT_S,
            is_stream=True,
            session=ask.session,
        )
        standing = Standing(tenant=ask.tenant) if ask.tenant is not None and self.is_fair else None
        return Demand(request, self.pool, ask.prompt, ask.adapter, standing=standing)


def open_station(
    loop: VirtualLoop,
    replica_ids: Sequence[str],
    policy: str,
    seed: int,
    send: Callable[[Job, Lease], None],
    refused: Callable[[Job], None],
    block_size: int,
    num_blocks: int,
    adapters: Sequence[str] = (),
    roles: Mapping[str, Role] = MappingProxyType({}),
) -> Station:
    """A router that finds all replicas ready; some have roles, by id. Raises PluginError where there is no such
    policy."""
    chance = random.Random(f"{seed}/{Path(policy).stem}")  # wherever a recipe lies
    index = BlockIndex(INDEX_BYTES)
    caches = Caches(index, has_tokenizer=lambda _: True, listens=False)
    registry = Registry(
        _Known(),
        on_change=lambda: queue.pump(),
        on_lost=caches.lost,
        on_identified=lambda replica, pool, _: caches.identified(replica, pool),
        clock=loop.time,
        random=chance.random,
    )
    chosen = open_policy(policy, open_parts(), chance, MAX_IN_FLIGHT)
    reserve, handovers = registry.reserve, None
    if roles:
        chosen, handovers = _paired(chosen, registry, index, caches, loop)
        reserve = handovers.take
    placement = Placement(
        registry.available, registry.has_ready, reserve, index, chosen, loop.time, on_device=index.match_device
    )
    queue = LocalQueue(placement, loop.time, MAX_WAITING, MAX_WAIT_S)
    specs = [ReplicaSpec(f"http://{id}", role=roles.get(id)) for id in replica_ids]
    registry.reconcile(specs)
    engine = ENGINE if roles else None
    identity = Identity(_cards(adapters), block_size, num_blocks=num_blocks, engine=engine)
    for spec in specs:
        registry.adopt(Sighting(spec, None, ReplicaState.READY, True, 0.0, 0.0, identity), None)
    return Station(loop, registry, placement, queue, caches, send, refused, handovers=handovers)


def _paired(
    policy: Policy, registry: Registry, index: BlockIndex, caches: Caches, loop: VirtualLoop
) -> tuple[Policy, Handovers]:
    """As `router/outgoing.py` does it."""
    moving = Moving(KV_TRANSFER_TOKEN_S)
    splitting = Splitting(policy, lambda _: True, moving, MAX_IN_FLIGHT)
    failed, answered = caches.learners()
    handovers = Handovers(
        reserve=registry.reserve,
        index=index,
        budget=RetryBudget(0.0),
        clock=loop.time,
        moving=moving,
        pause=splitting.pause,
        metrics=Metrics(),
        failed=failed,
        answered=answered,
    )
    return splitting, handovers


@dataclass(frozen=True, slots=True)
class _Known:
    """Discovery is told once, by hand."""

    async def list(self) -> Sequence[ReplicaSpec]:
        return ()


def _cards(adapters: Sequence[str]) -> tuple[Card, ...]:
    return (Card(MODEL), *(Card(name, parent=MODEL) for name in adapters))
