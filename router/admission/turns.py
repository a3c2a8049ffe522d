"""One pool's turns at Redis, as one router takes them: what it keeps of the pool's places, who of its waiters stands in
the common line, and what an answer means. A synchronous core: knows the script's arguments and answers; knows no
socket, no clock and no engine.

    ALONE      no Redis: the local order stands, and our places are one part of as many as routers were known
    JOINING    registering anew: as ALONE until the answer
    FREE       nobody waits anywhere: places up to `held` are ours, and a request that fits takes one at once
    CONTENDED  somebody waits somewhere: every place goes back when it is free, and comes only as a grant

An answer that never came may have granted something: then the router registers anew, under a new epoch, and what the
old one had in line counts no more. A turn says that what the turn before it gave has been placed: until then nobody of
the same flow who came later by more than the tolerance is placed elsewhere.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from router.admission.bands import BandTerms
from router.admission.capacity import Room
from router.admission.lineup import Lineup, Says, flow_name
from router.admission.waiters import Waiter
from router.core import Standing

LEASE_MS = 3000
MOST_GRANTS = 512
# A waiter that was granted a place and fits none that is free now asks again so much later.
MISFIT_PAUSE_S = 0.02
# Who came later by so much never starts first; but a router that stands still is waited for no longer than the claim.
TOLERANCE_MS, CLAIM_MS = 50, 250
# Routers that come back from a loss wait so long for those they knew.
GATHER_MS = 8000
# Clocks that differ by so much more than before: one of them was set.
JUMP_S = 0.5
_NEWEST_SHARE = 0.1


class Mode(Enum):
    """See above. ALONE -> JOINING -> FREE <-> CONTENDED; ALONE from anywhere, JOINING when fenced."""

    ALONE = "alone"
    JOINING = "joining"
    FREE = "free"
    CONTENDED = "contended"


@dataclass(frozen=True, slots=True)
class _Sight:
    """What must be added to our clock for that of Redis, and how long the answer took that told it."""

    offset_s: float
    took_s: float


@dataclass(eq=False, slots=True)
class Turns:
    """`router` is a name without `|` or `,`. `used` are our leases, and `used_tokens` what they take; we may have
    `held` and `held_tokens`, which one request may overdraw, and where `is_idle` we want none in advance. `room` is
    what all routers share."""

    router: str
    terms: BandTerms
    mode: Mode = Mode.ALONE
    epoch: int = 0
    held: int = 0
    held_tokens: int = 0
    used: int = 0
    used_tokens: int = 0
    room: Room = field(default_factory=Room)
    num_routers: int = 1
    num_granted: int = 0
    is_idle: bool = False
    grace: Callable[[], float] = lambda: 0.0
    _mean_tokens: float = 1.0
    _others_held: int = 0
    _heard_held: int = 0
    _sight: _Sight | None = None
    _lineup: Lineup = field(init=False)
    _settled: dict[str, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._lineup = Lineup(self.router)

    @property
    def may_start(self) -> bool:
        """May a request that nobody comes before start now?"""
        if self.mode is Mode.FREE:
            return self.used < self.held and (self.room.tokens is None or self.used_tokens < self.held_tokens)
        if self.mode is Mode.CONTENDED:
            return False
        # Alone: our part of what there is, as far as others are known.
        if self.num_routers < 2 or not self.used:
            return True
        tokens, parts = self.room.tokens, self.num_routers
        return self.used < -(-self.room.requests // parts) and (tokens is None or self.used_tokens < tokens / parts)

    @property
    def num_waiting(self) -> int:
        return self._lineup.num_waiting

    @property
    def has_leaves(self) -> bool:
        """Has somebody left the common line who still stands there?"""
        return self._lineup.has_leaves

    @property
    def is_short(self) -> bool:
        """Is it time to ask for more places, before they are needed?"""
        if self.mode is not Mode.FREE:
            return False
        if self.room.tokens is not None and self.held_tokens - self.used_tokens <= self._token_headroom // 2:
            return True
        return self.held - self.used <= self._headroom // 2

    def take(self, num_tokens: int) -> None:
        """One more of our leases."""
        self.used += 1
        self.used_tokens += num_tokens
        self._mean_tokens += _NEWEST_SHARE * (num_tokens - self._mean_tokens)

    def give(self, num_tokens: int) -> None:
        """One of them has ended."""
        self.used -= 1
        self.used_tokens -= num_tokens

    def join(self, waiter: Waiter[Any], tokens: float) -> None:
        self._lineup.join(waiter, tokens)

    def leave(self, waiter: Waiter[Any]) -> None:
        """It was placed, or waits no more. Later calls do nothing."""
        self._lineup.leave(waiter)

    def settle(self, standing: Standing, tokens: float) -> None:
        """A granted request took so many more tokens, per weight, than the common line charged."""
        if self.mode is not Mode.ALONE and tokens:
            flow = flow_name(standing)
            self._settled[flow] = self._settled.get(flow, 0.0) + tokens

    def lose(self) -> None:
        """Redis is away, or an answer was lost."""
        self.mode, self.epoch, self.held, self.held_tokens = Mode.ALONE, 0, 0, 0
        self._settled.clear()
        self._lineup.lose()

    def rejoin(self) -> None:
        """Redis is there, or has fenced us: the next turn registers."""
        self.lose()
        self.mode = Mode.JOINING

    def compose(self, now: float, room: Room) -> list[Any]:
        """The script's arguments. From now on we hold no more than they say we keep."""
        self.room = room
        waiters = self._lineup.compose(self._says(now))
        keep, keep_tokens, want, want_tokens = self.used, self.used_tokens, 0, 0
        if self.mode is not Mode.CONTENDED and not self._lineup.has_pushed and not self.is_idle:
            spare, spare_tokens = self._headroom, self._token_headroom
            if self.mode is Mode.FREE:
                keep = max(keep, min(self.held, self.used + 2 * spare))
                keep_tokens = max(keep_tokens, min(self.held_tokens, self.used_tokens + 2 * spare_tokens))
            want = max(0, self.used + spare - keep)
            want_tokens = max(0, self.used_tokens + spare_tokens - keep_tokens)
        self.held, self.held_tokens = keep, keep_tokens
        head = [self.router, self.epoch, room.requests, room.tokens or 0, keep, keep_tokens, want, want_tokens]
        times = [MOST_GRANTS, LEASE_MS, CLAIM_MS, TOLERANCE_MS]
        shares = [f"{share:.6f}" for share in self.terms.min_shares]
        ageing = [f"{self.terms.ageing_s * 1e3:.0f}", f"{self.terms.most_share:.6f}"]
        num_marks, *moves = waiters
        heard = [self.num_routers, self._others_held, self._heard_held, f"{self.grace():.6f}"]
        return [*head, *times, *shares, *ageing, GATHER_MS, num_marks, *heard, *moves, *self._taken_settlements()]

    def apply(self, answer: Sequence[Any], asked_at: float, now: float) -> list[Waiter[Any]]:
        """Take in what the script gave; who was granted a place, in order. Each is to be placed, or put off."""
        epoch, held, held_tokens, is_contended, num_routers, places, tokens, unix_ms, others, *granted = map(
            int, answer
        )
        if epoch < 0:
            self.rejoin()
            return []
        self._see(_Sight(unix_ms / 1e3 - (asked_at + now) / 2.0, now - asked_at))
        self.epoch, self.held, self.held_tokens, self.num_routers = epoch, held, held_tokens, num_routers
        self._others_held, self._heard_held, self.room = others, held, Room(places, tokens or None)
        self.mode = Mode.CONTENDED if is_contended or self._lineup.has_pushed else Mode.FREE
        found = self._lineup.granted(granted)
        self.num_granted += len(found)
        return found

    def _see(self, sight: _Sight) -> None:
        """All go by the clock of Redis, whatever becomes of their own. The answer that took least tells best."""
        known = self._sight
        if known is None or sight.took_s < known.took_s or abs(sight.offset_s - known.offset_s) > JUMP_S + sight.took_s:
            self._sight = sight

    def put_off(self, waiter: Waiter[Any], now: float) -> None:
        """It was granted a place, and fits none that is free: it asks again a little later."""
        self._lineup.put_off(waiter, now + MISFIT_PAUSE_S)

    @property
    def _headroom(self) -> int:
        """Places held for what comes next: half of what is used, but a fair part of the pool at most."""
        return max(1, min(self.used // 2 + 2, self.room.requests // (2 * self.num_routers)))

    @property
    def _token_headroom(self) -> int:
        most = 0 if self.room.tokens is None else self.room.tokens // (2 * self.num_routers)
        return min(self.used_tokens // 2 + round(2 * self._mean_tokens), most)

    def _says(self, now: float) -> Says | None:
        """None before an answer has told epoch and time."""
        if self.epoch == 0 or self._sight is None:
            return None
        return Says(self.epoch, now, self._sight.offset_s, self.mode is Mode.FREE and self.may_start)

    def _taken_settlements(self) -> list[Any]:
        settled, self._settled = self._settled, {}
        return [len(settled), *(word for flow, tokens in settled.items() for word in (flow, f"{tokens:.3f}"))]

    def __repr__(self) -> str:
        return f"<Turns {self.mode.name} {self.used} used of {self.held} held, {self.num_waiting} waiting>"
