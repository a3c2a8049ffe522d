"""One replica's record in the registry: the replica itself and what only this room knows of it. No I/O, no tasks."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from router.core import Load, Replica
from router.replicas.adapters import Residency, Slots
from router.replicas.breaker import Breaker
from router.replicas.distance import Distance
from router.replicas.health import Health
from router.replicas.holdings import Holdings
from router.replicas.identify import Card, Identity
from router.replicas.speeds import Speeds


@dataclass(eq=False, slots=True)
class Member:
    """`must_identify`: what it serves is unknown, or may have changed while it was lost; `must_relist`: its adapters
    have changed. `metrics_path`: None where it has no page that we can read; `slots`: what that said of adapters.
    `may_sleep` is false where it knows no sleep. `wants_probe` is set when a request's failure makes it suspect.
    `lost_at`: when it was last lost, 0 if never. `publish` is called when its counts have changed: other workers go by
    them."""

    replica: Replica
    breaker: Breaker
    health: Health = field(init=False)
    identity: Identity | None = None
    identified_at: float = -math.inf
    must_identify: bool = True
    must_relist: bool = False
    metrics_path: str | None = None
    may_sleep: bool = True
    wants_probe: asyncio.Event = field(default_factory=asyncio.Event)
    lost_at: float = 0.0
    publish: Callable[[], None] | None = None
    speeds: Speeds = field(default_factory=Speeds)
    holdings: Holdings = field(default_factory=Holdings)
    residency: Residency = field(default_factory=Residency)
    slots: Slots | None = None
    distance: Distance = field(init=False)
    measured_at: float = -math.inf

    def __post_init__(self) -> None:
        self.distance = Distance(self.replica.spec.round_trip_s)
        self.distance.tell(self.replica)
        self.replica.shared_tokens = self.holdings.num_shared
        self.replica.resident_adapters = self.residency.names
        self.replica.adapter_load_s = self.residency.load_s
        self.replica.num_free_adapter_slots = self.residency.num_free
        self.health = Health(self.replica)

    def identify(self, identity: Identity, now: float) -> None:
        self.identity = identity
        self.identified_at = now
        self.must_identify = False
        self.replica.models = identity.models
        self.replica.adapters = identity.adapters
        self.replica.engine = identity.engine
        self.replica.kv_capacity_tokens = identity.kv_capacity_tokens or self.replica.kv_capacity_tokens

    def relist(self, cards: tuple[Card, ...], now: float) -> bool:
        """Take in a newer model list. True when adapters differ; another base model sets `must_identify` instead."""
        self.identified_at = now
        if self.identity is None or cards == self.identity.cards:
            return False
        newer = replace(self.identity, cards=cards)
        if newer.models != self.identity.models:
            self.must_identify = True
            return False
        self.identity = newer
        self.replica.adapters = newer.adapters
        return True

    def relist_soon(self) -> None:
        """An adapter came or went there: have it list anew what it serves."""
        self.must_relist = True
        self.wants_probe.set()

    def take_in_slots(self, slots: Slots | None) -> None:
        """What it says of its adapters' slots; None where it says nothing."""
        if slots is not None:
            self.slots = slots
            self.residency.report(slots)
            self.replica.num_free_adapter_slots = self.residency.num_free

    def take_in_speeds(self) -> None:
        """What was learned of its speed holds for the next decision."""
        self.replica.step = self.speeds.step

    def forget_speeds(self) -> None:
        """It serves another model: nothing that was learned holds."""
        self.speeds.forget()
        self.take_in_speeds()

    def lose(self, now: float) -> None:
        """It failed or went: nothing it reported holds any more. Open leases are still counted until they end."""
        self.must_identify = True
        self.may_sleep = True
        self.lost_at = now
        self.speeds.begin_anew()
        self.residency.forget()
        self.slots = None
        self.forget_load()

    def report(self, load: Load, num_ours: int) -> bool:
        """Take in its own report. True when it shows less foreign work than before.

        What the report shows beyond the `num_ours` requests that we have there is foreign: another router's, or
        somebody's own. Our dispatches count at once in `in_flight`, so load = last report + what we sent since.
        """
        replica = self.replica
        before = (replica.foreign_requests, replica.foreign_tokens)
        replica.load = load
        replica.foreign_requests = max(0, load.running + load.waiting - num_ours)
        num_tokens = replica.prefilling_tokens + replica.sibling_prefilling_tokens
        replica.foreign_tokens = max(0, (load.queued_tokens or 0) - num_tokens)
        self.take_in_others(load)
        return replica.foreign_requests < before[0] or replica.foreign_tokens < before[1]

    def take_in_others(self, load: Load) -> None:
        """What of its KV cache others' requests hold, and what it computed for them: decisions and learned speeds would
        else take their share of its time for slowness."""
        replica, found = self.replica, 0
        if replica.kv_capacity_tokens is not None and replica.foreign_requests + replica.sibling_in_flight > 0:
            ours = replica.held_tokens + 0.5 * replica.awaited_tokens
            found = max(0, int(load.kv_used_ratio * replica.kv_capacity_tokens - ours))
        self._set_foreign_context(found)
        if load.computed_tokens is not None:
            self.speeds.observe(load.computed_tokens)

    def adopt_load(self, load: Load | None, foreign_requests: int, foreign_tokens: int) -> None:
        """What another process made of its report; None where that has none, or too old a one."""
        if load is None:
            self.forget_load()
            return
        self.replica.load = load
        self.replica.foreign_requests, self.replica.foreign_tokens = foreign_requests, foreign_tokens
        self.take_in_others(load)

    def age(self, now: float, max_age_s: float) -> bool:
        """Drop a report that is too old to act on. True when there was one."""
        load = self.replica.load
        if load is None or now - load.at <= max_age_s:
            return False
        self.forget_load()
        return True

    def forget_load(self) -> None:
        self.replica.load = None
        self.replica.foreign_requests = self.replica.foreign_tokens = 0
        self._set_foreign_context(0)

    def _set_foreign_context(self, num_tokens: int) -> None:
        self.replica.context_tokens += num_tokens - self.replica.foreign_context_tokens
        self.replica.foreign_context_tokens = num_tokens

    def __repr__(self) -> str:
        return f"<Member {self.replica!r} {self.breaker!r}>"
