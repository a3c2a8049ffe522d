"""The line of those who wait for a place in one pool. Knows order and limits; knows no task, no future and no engine.

Order is the band (but a lower one gets its least share), then the flow that has had least of the pool (while a shortage
is new all are equal), then the earliest due, then arrival. A demand may have limits of its own: the adapter it needs,
the replicas it has tried. Demands of equal limits share a lane, and of a lane only the head is ever offered a place:
where the head does not fit, nobody behind it does. So a blocked head holds up its own lane and no other, and a pump
costs one try per lane, not per waiter.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from router.admission.bands import NUM_BANDS, BandTerms
from router.admission.crowds import Crowd
from router.admission.flows import Flow, Flows
from router.admission.shares import Shares
from router.admission.stretches import Stretches
from router.admission.waiters import NO_LIMITS, Limits, Waiter, due_of, limits_of, standing_of
from router.core import Demand, Standing

T = TypeVar("T")

# Lanes tried in vain in one go: at well under 0.1 ms a try, a few milliseconds of the event loop.
MAX_MISSES = 32


@dataclass(eq=False, slots=True)
class _Lane(Generic[T]):
    """Waiters of equal limits, by band."""

    limits: Limits
    crowds: Sequence[Crowd[T]]
    num_waiting: int = 0

    def head(self, order: Sequence[int]) -> "_Head[T]":
        """Who is next of this lane, where bands have their turn in this order."""
        for turn, rank in enumerate(order):
            if self.crowds[rank].runs:
                flows_turn, waiter = self.crowds[rank].head()
                return turn, flows_turn, waiter.due, waiter.sequence, waiter, self
        raise LookupError("an empty lane has no head")


_Head = tuple[int, float, float, int, Waiter[T], _Lane[T]]


@dataclass(eq=False, slots=True)
class Line(Generic[T]):
    """The waiters of one pool. Joining, leaving and a turn cost O(log flows) or less, amortised."""

    terms: BandTerms = field(default_factory=BandTerms)
    flows: Flows = field(default_factory=Flows)
    num_waiting: int = 0
    _bands: Sequence[Stretches[T]] = field(default_factory=lambda: [Stretches() for _ in range(NUM_BANDS)])
    _lanes: dict[Limits, _Lane[T]] = field(default_factory=dict, init=False)
    _passed: set[Limits] = field(default_factory=set, init=False)
    _shares: Shares = field(init=False)

    def __post_init__(self) -> None:
        self._shares = Shares(self.terms)

    def __len__(self) -> int:
        return self.num_waiting

    @property
    def oldest(self) -> Waiter[T] | None:
        """The one who joined first of those still here, whatever its turn."""
        oldest = [waiter for band in self._bands if (waiter := band.everyone.oldest()) is not None]
        return min(oldest, key=lambda waiter: waiter.sequence, default=None)

    def num_waiting_in(self, rank: int) -> int:
        """Waiters of one band."""
        return self._bands[rank].num_waiting

    def is_held_up(self, demand: Demand) -> bool:
        """Does anybody wait whose being here tells that this demand would find no place either?

        That is anybody of equal limits, and anybody without limits: they could take any place there is.
        """
        lanes = self._lanes
        return bool(lanes) and (NO_LIMITS in lanes or limits_of(demand) in lanes)

    def num_ahead(self, standing: Standing) -> int:
        """About how many would be served before a newcomer: the bands before its own, and of its own as many of each
        flow as its flow has waiting."""
        before = sum([self._bands[rank].num_waiting for rank in range(standing.band)])
        band, flow = self._bands[standing.band], self.flows.get(standing)
        own = band.length_of(flow)
        num_others = band.num_flows - (1 if own else 0)
        return before + min(band.num_waiting, own + (own + 1) * num_others)

    def num_ahead_of(self, waiter: Waiter[T]) -> int:
        """The same for who waits: those of its own flow that joined later are behind it."""
        band = self._bands[waiter.band]
        before = sum([self._bands[rank].num_waiting for rank in range(waiter.band)])
        own = band.num_earlier(self.flows.get(waiter.standing), waiter)
        return before + min(band.num_waiting - 1, own + (own + 1) * (band.num_flows - 1))

    def join(self, demand: Demand, ticket: T, now: float, sequence: int) -> Waiter[T]:
        standing = standing_of(demand)
        waiter = Waiter(demand, ticket, standing, now, due_of(demand), sequence)
        flow, limits = self.flows.get(standing), limits_of(demand)
        self.flows.begin_wait(flow)
        lane = self._lanes.get(limits)
        if lane is None:
            lane = self._lanes[limits] = _Lane(limits, [Crowd(self.flows) for _ in range(NUM_BANDS)])
        lane.crowds[standing.band].push(flow, waiter)
        lane.num_waiting += 1
        self._bands[standing.band].push(flow, waiter)
        self.num_waiting += 1
        return waiter

    def leave(self, waiter: Waiter[T]) -> None:
        """Later calls do nothing."""
        if waiter.has_left:
            return
        waiter.has_left = True
        flow, rank, lane = self.flows.get(waiter.standing), waiter.standing.band, self._lanes[waiter.limits]
        self.num_waiting -= 1
        self._bands[rank].discard_one(flow)
        lane.crowds[rank].discard_one(flow)
        lane.num_waiting -= 1
        if lane.num_waiting == 0:
            del self._lanes[lane.limits]
        self.flows.end_wait(flow)

    def serve(self, flow: Flow, rank: int, num_tokens: float, now: float) -> float:
        """A place in this band was given to this flow, waiting or not, for about so many tokens. Returns the rate at
        which it was charged."""
        if self.num_waiting and len(self._waiting_ranks()) > 1:
            self._shares.served(rank, num_tokens, self._waits_s(now))
        return self.flows.serve(flow, num_tokens)

    def settle(self, flow: Flow, num_tokens: float, charged_tokens: float, rate: float) -> None:
        """It took so many tokens where it was charged others; a refund where that is less."""
        self.flows.settle(flow, num_tokens, charged_tokens, rate)
        if num_tokens < charged_tokens:
            for crowd in flow.crowds:
                crowd.touch(flow)

    def victim(self, standing: Standing) -> Waiter[T] | None:
        """Who gives way to a newcomer where the line is full: the newest of the longest stretch of the lowest band
        below its own; or of its own band, if that stretch is longer than the newcomer's would become."""
        for rank in range(NUM_BANDS - 1, standing.band, -1):
            found = self._bands[rank].newest_of_longest()
            if found is not None:
                return found[1]
        band = self._bands[standing.band]
        found = band.newest_of_longest()
        if found is None or found[0] <= band.length_of(self.flows.get(standing)) + 1:
            return None
        return found[1]

    def advance(self, serve: Callable[[Waiter[T]], bool]) -> bool:
        """Offer places in order: `serve` says whether the waiter is done with the line. True: call again for the rest.

        It ends when a waiter without limits finds no place, as the pool is full then; or after MAX_MISSES lanes, which
        the next call passes over, so that every lane gets its turn however many are blocked.
        """
        order = self._order()
        missed: set[Limits] = set()
        heads = self._heads(order, missed)
        while heads and len(missed) < MAX_MISSES:
            *_, waiter, lane = heads[0]
            if serve(waiter):
                self.leave(waiter)
                order, before = self._order(), order
                heads = self._refreshed(heads, order) if order == before else self._heads(order, missed)
            elif lane.limits == NO_LIMITS:
                heads.clear()
            else:
                missed.add(lane.limits)
                heapq.heappop(heads)
                self._refresh(heads, order)
        self._passed = self._passed | missed if heads else set()
        return bool(heads)

    def _heads(self, order: Sequence[int], missed: set[Limits]) -> list[_Head[T]]:
        passed = self._passed | missed if missed else self._passed
        heads = [lane.head(order) for lane in self._lanes.values() if lane.limits not in passed]
        heapq.heapify(heads)
        return heads

    def _refreshed(self, heads: list[_Head[T]], order: Sequence[int]) -> list[_Head[T]]:
        """The first of them has been served, and its flow charged."""
        lane = heads[0][-1]
        if lane.num_waiting:
            heapq.heapreplace(heads, lane.head(order))
        else:
            heapq.heappop(heads)
        self._refresh(heads, order)
        return heads

    def _refresh(self, heads: list[_Head[T]], order: Sequence[int]) -> None:
        """Until the first is as it says: its flow may have been charged for what another lane's head was given."""
        while heads:
            head = heads[0][-1].head(order)
            if head[:4] == heads[0][:4]:
                return
            heapq.heapreplace(heads, head)

    def _waiting_ranks(self) -> list[int]:
        return [rank for rank, band in enumerate(self._bands) if band.everyone.num_waiting]

    def _order(self) -> Sequence[int]:
        return self._shares.order(self._waiting_ranks())

    def _waits_s(self, now: float) -> list[float | None]:
        oldest = [band.everyone.oldest() for band in self._bands]
        return [None if waiter is None else now - waiter.joined_at for waiter in oldest]

    def __repr__(self) -> str:
        return f"<Line {self.num_waiting} waiting in {len(self._lanes)} lanes>"
