"""One pool's turns at Redis, as one router takes them: what it keeps of the pool's places, who of its waiters stands in
the common line, and what an answer means. A synchronous core: knows the script's arguments and answers; knows no
socket, no clock and no engine.

    ALONE      no Redis: the local order stands, and our places are one part of as many as routers were known
    JOINING    registering anew: as ALONE until the answer
    FREE       nobody waits anywhere: places up to `held` are ours, and a request that fits takes one at once
    CONTENDED  somebody waits somewhere: every place goes back when it is free, and comes only as a grant

An answer that never came may have granted something: then the router registers anew, under a new epoch, and what the
old one had in line counts no more.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from router.admission.bands import BandTerms
from router.admission.waiters import NO_LIMITS, Waiter
from router.core import Standing

LEASE_MS = 3000
MOST_GRANTS = 512
MOST_JOINS = 1000
# A waiter that was granted a place and fits none that is free now asks again so much later.
MISFIT_PAUSE_S = 0.02


class Mode(Enum):
    """See above. ALONE -> JOINING -> FREE <-> CONTENDED; ALONE from anywhere, JOINING when fenced."""

    ALONE = "alone"
    JOINING = "joining"
    FREE = "free"
    CONTENDED = "contended"


@dataclass(eq=False, slots=True)
class _Entry:
    """A waiter's place in the common line. `pushed` is how it stands there, None while it does not."""

    waiter: Waiter[Any]
    tokens: float
    not_before: float = 0.0
    pushed: tuple[int, str, str] | None = None


@dataclass(eq=False, slots=True)
class Turns:
    """`router` is a name without `|` or `,`. `used` are our leases; we may have `held` of them, and where `is_idle` we
    want none in advance. `unix_offset_s()` makes Unix seconds of the router's clock."""

    router: str
    terms: BandTerms
    unix_offset_s: Callable[[], float]
    mode: Mode = Mode.ALONE
    epoch: int = 0
    held: int = 0
    used: int = 0
    capacity: int = 0
    num_routers: int = 1
    num_granted: int = 0
    is_idle: bool = False
    _entries: dict[int, _Entry] = field(default_factory=dict, init=False)
    _numbers: dict[Waiter[Any], int] = field(default_factory=dict, init=False)
    _unpushed: dict[int, None] = field(default_factory=dict, init=False)
    _leaves: list[tuple[int, str, str]] = field(default_factory=list, init=False)
    _settled: dict[str, float] = field(default_factory=dict, init=False)
    _next_number: int = 0

    @property
    def may_start(self) -> bool:
        """May a request that nobody comes before start now?"""
        if self.mode is Mode.FREE:
            return self.used < self.held
        if self.mode is Mode.CONTENDED:
            return False
        # Alone: our part of what there is, as far as others are known.
        return self.num_routers < 2 or self.used < max(1, -(-self.capacity // self.num_routers))

    @property
    def num_waiting(self) -> int:
        return len(self._entries)

    @property
    def is_short(self) -> bool:
        """Is it time to ask for more places, before they are needed?"""
        return self.mode is Mode.FREE and self.held - self.used <= self._headroom // 2

    def join(self, waiter: Waiter[Any], tokens: float) -> None:
        self._next_number += 1
        number = self._next_number
        self._entries[number] = _Entry(waiter, tokens)
        self._numbers[waiter] = number
        self._unpushed[number] = None

    def leave(self, waiter: Waiter[Any]) -> None:
        """It was placed, or waits no more. Later calls do nothing."""
        number = self._numbers.pop(waiter, None)
        if number is None:
            return
        entry = self._entries.pop(number)
        self._unpushed.pop(number, None)
        if entry.pushed is not None:
            self._leaves.append(entry.pushed)

    def settle(self, standing: Standing, tokens: float) -> None:
        """A granted request took so many more tokens, per weight, than the common line charged."""
        if self.mode is not Mode.ALONE and tokens:
            flow = flow_name(standing)
            self._settled[flow] = self._settled.get(flow, 0.0) + tokens

    def lose(self) -> None:
        """Redis is away, or an answer was lost."""
        self.mode, self.epoch, self.held = Mode.ALONE, 0, 0
        self._leaves.clear()
        self._settled.clear()
        for number, entry in self._entries.items():
            entry.pushed = None
            self._unpushed[number] = None

    def rejoin(self) -> None:
        """Redis is there, or has fenced us: the next turn registers."""
        self.lose()
        self.mode = Mode.JOINING

    def compose(self, now: float, capacity: int) -> list[Any]:
        """The script's arguments. From now on we hold no more than they say we keep."""
        self.capacity = capacity
        joins = self._joins(now)
        keep = self.used
        if self.mode is Mode.FREE and not self._has_pushed and not self.is_idle:
            keep = max(self.used, min(self.held, self.used + 2 * self._headroom))
        self.held = keep
        wants_none = self.is_idle or self.mode is Mode.CONTENDED or self._has_pushed
        want = 0 if wants_none else max(0, self.used + self._headroom - keep)
        shares = [f"{share:.6f}" for share in self.terms.min_shares]
        ageing = [f"{self.terms.ageing_s * 1e3:.0f}", f"{self.terms.most_share:.6f}"]
        head = [self.router, self.epoch, capacity, keep, want, MOST_GRANTS, LEASE_MS, *shares, *ageing]
        return [*head, *joins, *self._taken_leaves(), *self._taken_settlements()]

    def apply(self, answer: Sequence[Any]) -> list[Waiter[Any]]:
        """Take in what the script gave; who was granted a place, in order. Each is to be placed, or put off."""
        epoch, held, is_contended, num_routers, capacity, *granted = answer
        if int(epoch) < 0:
            self.rejoin()
            return []
        self.epoch, self.held = int(epoch), int(held)
        self.num_routers, self.capacity = int(num_routers), int(capacity)
        self.mode = Mode.CONTENDED if int(is_contended) or self._has_pushed else Mode.FREE
        found = []
        for number in map(int, granted):
            entry = self._entries.get(number)
            if entry is not None:
                entry.pushed = None
                found.append(entry.waiter)
        self.num_granted += len(found)
        return found

    def put_off(self, waiter: Waiter[Any], now: float) -> None:
        """It was granted a place, and fits none that is free: it asks again a little later."""
        number = self._numbers.get(waiter)
        if number is not None:
            self._entries[number].not_before = now + MISFIT_PAUSE_S
            self._unpushed[number] = None

    @property
    def _headroom(self) -> int:
        """Places held for what comes next: half of what is used, but a fair part of the pool at most."""
        return max(1, min(self.used // 2 + 2, self.capacity // (2 * self.num_routers)))

    @property
    def _has_pushed(self) -> bool:
        return len(self._entries) > len(self._unpushed)

    def _joins(self, now: float) -> list[Any]:
        words: list[Any] = []
        offset_s, count, has_places = self.unix_offset_s(), 0, self.mode is Mode.FREE and self.may_start
        for number in list(self._unpushed):
            entry = self._entries[number]
            if entry.not_before > now or (has_places and entry.waiter.limits != NO_LIMITS):
                continue  # what is short of its adapter only must not make all others wait for their turn
            if count == MOST_JOINS:
                break
            waiter, standing = entry.waiter, entry.waiter.standing
            arrived_us = int((waiter.demand.request.arrived + offset_s) * 1e6)
            member = (
                f"{max(0, arrived_us):016d}|{self.router}|{self.epoch}|{number}|{entry.tokens:.0f}|{standing.weight:g}"
            )
            if self.epoch == 0:
                break  # a member names its epoch: the first turn is only to register
            entry.pushed = (int(standing.band), flow_name(standing), member)
            del self._unpushed[number]
            words += [int(standing.band), entry.pushed[1], f"{(waiter.due + offset_s) * 1e3:.3f}", member]
            count += 1
        return [count, *words]

    def _taken_leaves(self) -> list[Any]:
        leaves, self._leaves = self._leaves, []
        return [len(leaves), *(word for leave in leaves for word in leave)]

    def _taken_settlements(self) -> list[Any]:
        settled, self._settled = self._settled, {}
        return [len(settled), *(word for flow, tokens in settled.items() for word in (flow, f"{tokens:.3f}"))]

    def __repr__(self) -> str:
        return f"<Turns {self.mode.name} {self.used} used of {self.held} held, {len(self._entries)} waiting>"


def flow_name(standing: Standing) -> str:
    """`tenant`, or `tenant/flow`; what stands before the first slash is the tenant."""
    tenant = standing.tenant.replace("/", "%2f")
    return f"{tenant}/{standing.flow}" if standing.flow else tenant
