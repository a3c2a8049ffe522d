"""The replicas there are: found, watched, named and counted. Opens the room's other files to the rest of the router;
knows nothing of prompts, policies, queues or clients.

It starts empty and serves at once. Discovery is level-triggered: the full list counts, what is missing from it is gone.
"""

import asyncio
import logging
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import aiohttp

from router.core import Decision, Demand, Lease, Pool, Replica, ReplicaState
from router.errors import NoReplica, UnknownModel, UpstreamError
from router.ports import Clock, Discovery
from router.replicas.alarms import Alarms
from router.replicas.breaker import Breaker, BreakerState
from router.replicas.catalog import Catalog
from router.replicas.fetch import open_session
from router.replicas.health import Event
from router.replicas.identify import Identity, TokenizerDocument
from router.replicas.leases import Share, Verdict, take
from router.replicas.member import Member
from router.replicas.roster import Roster
from router.replicas.sighting import Sighting
from router.replicas.watch import Pace, Watch
from router.spec import ReplicaSpec

log = logging.getLogger(__name__)


def _ignore(_: Member) -> None:
    """What nobody listens to."""


@dataclass(eq=False, slots=True)
class Registry:
    """Owner of all Replica and Pool objects; the only writer of their counts and states.

    `on_change()`: something may now be placed (a release, a replica ready or cooled down). `on_lost(replica_id)`: it
    failed or is gone, and what it had cached with it. `on_identified(replica, pool, document)`: what it serves; the
    document is None where the replica does not hand out its tokenizer.

    Of several workers on a host none runs its registry: one process does (the feed), tells the others what it sees
    (`on_seen`), and they `adopt` it and tell it of failures (`on_suspect`) and push-backs (`on_cooled`).
    """

    discovery: Discovery
    on_change: Callable[[], None]
    on_lost: Callable[[str], None]
    on_identified: Callable[[Replica, Pool, TokenizerDocument | None], None]
    clock: Clock = time.monotonic
    random: Callable[[], float] = random.random
    discovery_interval_s: float = 5.0
    discovery_timeout_s: float = 10.0
    probe_interval_s: float = 2.0
    probe_timeout_s: float = 2.0
    identify_timeout_s: float = 10.0
    models_interval_s: float = 30.0
    load_interval_s: float = 0.5
    load_max_age_s: float = 5.0
    breaker_faults: int = 3
    breaker_open_s: float = 2.0
    cooldown_s: float = 1.0
    max_cooldown_s: float = 30.0
    on_seen: Callable[[Member], None] = _ignore
    on_suspect: Callable[[Member], None] = _ignore
    on_cooled: Callable[[Member], None] = _ignore
    before_report: Callable[[], None] = field(default=lambda: None)
    _members: dict[str, Member] = field(default_factory=dict, init=False)
    _catalog: Catalog = field(default_factory=Catalog, init=False)
    _roster: Roster = field(default_factory=Roster, init=False)
    _has_listed: bool = field(default=False, init=False)
    _news: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _watch: Watch | None = field(default=None, init=False)
    _alarms: Alarms | None = field(default=None, init=False)

    async def run(self) -> None:
        """Find and watch replicas until cancelled."""
        async with open_session() as session, asyncio.TaskGroup() as group:
            self._watch = self._open_watch(session, group)
            self._alarms = Alarms(asyncio.get_running_loop(), self.clock, lambda: self.on_change())
            try:
                for member in self._members.values():
                    self._watch.start(member)
                await self._discover_forever()
            finally:
                self._alarms.close()
                self._watch = self._alarms = None

    def reconcile(self, specs: Iterable[ReplicaSpec]) -> None:
        """Make the registry hold exactly these replicas. What is gone gets no new request; its open leases end."""
        wanted = {spec.id: spec for spec in specs}
        gone = [member for id, member in self._members.items() if id not in wanted]
        new = [spec for id, spec in wanted.items() if id not in self._members]
        for member in gone:
            self._remove(member)
        for spec in new:
            self._add(spec)
        for id, spec in wanted.items():
            self._respecify(self._members[id], spec)
        if gone or new or not self._has_listed:
            self._has_listed = True
            self._regroup()

    async def run_told(self) -> None:
        """Follow what another process sees, until cancelled: here only time is minded."""
        self._alarms = Alarms(asyncio.get_running_loop(), self.clock, lambda: self.on_change())
        try:
            while True:
                await asyncio.sleep(self.load_interval_s)
                aged = [member for member in self.members() if member.age(self.clock(), self.load_max_age_s)]
                if aged:
                    self.on_change()
        finally:
            self._alarms.close()
            self._alarms = None

    def adopt(self, sighting: Sighting, document: TokenizerDocument | None) -> None:
        """Take in what another process saw of a replica that `reconcile` has added."""
        member = self._find(sighting.id)
        if sighting.identity is not None and sighting.identity != member.identity:
            self._identified(member, sighting.identity, document)
        if sighting.lost_at > member.lost_at:
            member.lose(sighting.lost_at)
            self.on_lost(sighting.id)
        self._adopt_load(member, sighting)
        member.distance.adopt(sighting.round_trip_s, member.replica)
        self._adopt_state(member, sighting)
        member.breaker.cool(sighting.cooling_until)
        self._admission_changed(member)
        self.on_change()

    def replicas(self) -> Sequence[Replica]:
        return [member.replica for member in self._members.values()]

    def pools(self) -> Sequence[Pool]:
        return list(self._catalog.pools.values())

    def models(self) -> list[dict[str, object]]:
        """Entries for /v1/models, from what is known: asks nobody, and keeps what a replica serves while it is down."""
        return self._catalog.models()

    def find(self, model: str) -> tuple[Pool, str | None] | None:
        """Pool and adapter behind a model name, or None."""
        return self._catalog.find(model)

    def resolve(self, model: str) -> tuple[Pool, str | None]:
        """Pool and adapter behind a model name. Raises UnknownModel."""
        return self._catalog.resolve(model)

    async def known(self, model: str, deadline: float) -> tuple[Pool, str | None]:
        """Like `resolve`, but while some replica has never said what it serves, wait for it.

        Raises UnknownModel once all have, NoReplica when the deadline passes first.
        """
        while True:
            try:
                return self._catalog.resolve(model)
            except UnknownModel:
                if self._has_listed and all(member.identity is not None for member in self._members.values()):
                    raise
            news = self._news
            try:
                async with asyncio.timeout(deadline - self.clock()):
                    await news.wait()
            except TimeoutError:
                message = f"No replica has said yet whether it serves the model `{model}`."
                raise NoReplica(message, param="model", retry_after_s=math.ceil(self.probe_interval_s)) from None

    def available(self, pool: Pool, now: float) -> Sequence[Replica]:
        """Replicas that may be sent a request now: ready, not draining, not cooling, breaker not open."""
        return self._roster.available(pool, now)

    def has_ready(self, pool: Pool, tried: frozenset[str]) -> bool:
        """Is there a ready replica that has not been tried, whether or not it could take a request now?"""
        return any(replica.id not in tried for replica in self._roster.ready(pool, self.clock()))

    def reserve(self, demand: Demand, decision: Decision) -> Lease:
        """Count a request on its replica at once: the next decision already sees it."""
        member = self._members[decision.replica.id]
        lease = take(demand, decision, member, self.clock, self._heard)
        if member.breaker.state is not BreakerState.CLOSED:
            self._roster.update(member)
        return lease

    def members(self) -> Sequence[Member]:
        return list(self._members.values())

    @property
    def has_listed(self) -> bool:
        """Has discovery answered yet?"""
        return self._has_listed

    def suspect(self, replica_id: str) -> None:
        """A request failed there, in another process: look at once."""
        member = self._members.get(replica_id)
        if member is not None:
            member.wants_probe.set()

    def woken(self, replica_id: str) -> None:
        """It was told to wake up: look at once, whoever of us probes it."""
        member = self._members.get(replica_id)
        if member is not None:
            member.wants_probe.set()
            self.on_suspect(member)

    def cool(self, replica_id: str, until: float) -> None:
        """It pushed another process back."""
        member = self._members.get(replica_id)
        if member is not None:
            member.breaker.cool(until)
            self._admission_changed(member)
            self.on_seen(member)

    def breaker_state(self, replica_id: str) -> str:
        """For operators to see. Raises LookupError for a replica that is not there."""
        return self._find(replica_id).breaker.state.value

    def round_trip_s(self, replica_id: str) -> float | None:
        """None while it is unknown. Raises LookupError for a replica that is not there."""
        return self._find(replica_id).distance.round_trip_s

    def drain(self, replica_id: str) -> None:
        """Send it nothing new. Raises LookupError for a replica that is not there."""
        member = self._find(replica_id)
        if member.health.follow(Event.DRAIN):
            self._roster.update(member)
            self.on_seen(member)

    def undrain(self, replica_id: str) -> None:
        """Let it serve again, from its next good probe on. Raises LookupError."""
        member = self._find(replica_id)
        if member.health.follow(Event.UNDRAIN):
            member.wants_probe.set()
            self.on_seen(member)

    def _open_watch(self, session: aiohttp.ClientSession, group: asyncio.TaskGroup) -> Watch:
        pace = Pace(
            probe_interval_s=self.probe_interval_s,
            probe_timeout_s=self.probe_timeout_s,
            identify_timeout_s=self.identify_timeout_s,
            models_interval_s=self.models_interval_s,
            load_interval_s=self.load_interval_s,
            load_max_age_s=self.load_max_age_s,
        )
        return Watch(
            session,
            group,
            pace,
            self.clock,
            on_good=self._good,
            on_bad=self._bad,
            on_identified=self._identified,
            on_relisted=self._relisted,
            on_lighter=lambda: self.on_change(),
            on_report=lambda member: self.on_seen(member),
            before_report=lambda: self.before_report(),
            on_asleep=self._asleep,
        )

    async def _discover_forever(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self.discovery_timeout_s):
                    specs = await self.discovery.list()
            except Exception as error:
                log.warning("discovery failed, keeping the %d replicas known: %r", len(self._members), error)
            else:
                self.reconcile(specs)
            await asyncio.sleep(self.discovery_interval_s)

    def _add(self, spec: ReplicaSpec) -> None:
        breaker = Breaker(
            max_faults=self.breaker_faults,
            open_s=self.breaker_open_s,
            cooldown_s=self.cooldown_s,
            max_cooldown_s=self.max_cooldown_s,
            random=self.random,
        )
        member = self._members[spec.id] = Member(Replica(spec), breaker)
        if self._watch is not None:
            self._watch.start(member)
        self.on_seen(member)

    def _remove(self, member: Member) -> None:
        del self._members[member.replica.id]
        if self._watch is not None:
            self._watch.stop(member)
        if self._alarms is not None:
            self._alarms.drop(member)
        member.health.follow(Event.DRAIN)
        member.forget_load()
        self.on_lost(member.replica.id)
        self.on_seen(member)

    def _respecify(self, member: Member, spec: ReplicaSpec) -> None:
        """The same replica under another key, scheme or tokenizer: it keeps its counts."""
        if member.replica.spec != spec:
            member.replica.spec = spec
            member.must_identify = True
            member.wants_probe.set()
            self.on_seen(member)

    def _regroup(self) -> None:
        """Membership or identities changed: derive names, pools and views anew, and wake who waits for a name."""
        self._catalog.rebuild(self._members.values())
        self._roster.rebuild(self._members.values())
        self._news.set()
        self._news = asyncio.Event()

    def _identified(self, member: Member, identity: Identity, document: TokenizerDocument | None) -> None:
        before = member.identity
        member.identify(identity, self.clock())
        self._regroup()
        replica, pool = member.replica, self._catalog.pools[identity.models[0]]
        if before is not None and before.models != identity.models:
            member.forget_speeds()
            self.on_lost(replica.id)
        self.on_identified(replica, pool, document)
        self.on_seen(member)
        self.on_change()

    def _relisted(self, member: Member) -> None:
        self._regroup()
        self.on_seen(member)
        self.on_change()

    def _good(self, member: Member) -> None:
        if not member.health.pass_probe():
            return
        member.breaker.recover()
        self._roster.update(member)
        log.info("%s is ready and serves %s", member.replica.id, ", ".join(member.replica.models))
        self.on_seen(member)
        self.on_change()

    def _asleep(self, member: Member) -> None:
        """It is there, and gets nothing until it wakes; what it had cached is gone."""
        if member.health.pass_probe(is_asleep=True):
            self._roster.update(member)
            log.info("%s is asleep", member.replica.id)
            self.on_lost(member.replica.id)
            self.on_seen(member)

    def _bad(self, member: Member, error: UpstreamError) -> None:
        if not member.health.fail_probe(error):
            return
        member.lose(self.clock())
        self._roster.update(member)
        # One that has not been there yet is starting; one that was is missed.
        level = logging.INFO if member.identity is None else logging.WARNING
        log.log(level, "%s is not there (%s): %s", member.replica.id, member.replica.state.value, error)
        self.on_lost(member.replica.id)
        self.on_seen(member)

    def _adopt_load(self, member: Member, sighting: Sighting) -> None:
        member.adopt_load(sighting.load, sighting.foreign_requests, sighting.foreign_tokens)
        member.take_in_slots(sighting.slots)

    def _adopt_state(self, member: Member, sighting: Sighting) -> None:
        """A feed that has just started has seen nothing yet: what was known before stands."""
        if not sighting.is_settled or not member.health.mirror(sighting.state):
            return
        if sighting.state is ReplicaState.READY:
            member.breaker.recover()

    def _admission_changed(self, member: Member) -> None:
        self._roster.update(member)
        if self._alarms is not None and self._members.get(member.replica.id) is member:
            self._alarms.set(member)

    def _heard(self, share: Share, verdict: Verdict) -> None:
        """A trial passed or a lease ended."""
        member = share.member
        if verdict is Verdict.FAULT:
            member.wants_probe.set()
            self.on_suspect(member)
        elif verdict is Verdict.BACK_PRESSURE:
            self.on_cooled(member)
        if share.is_trial or verdict is Verdict.FAULT or verdict is Verdict.BACK_PRESSURE:
            self._admission_changed(member)
        self.on_change()

    def _find(self, replica_id: str) -> Member:
        member = self._members.get(replica_id)
        if member is None:
            raise LookupError(f"there is no replica {replica_id}; there are {', '.join(self._members) or 'none'}")
        return member

    def __repr__(self) -> str:
        states = Counter(member.replica.state.name for member in self._members.values())
        return f"<Registry {', '.join(f'{count} {name}' for name, count in states.items()) or 'empty'}>"
