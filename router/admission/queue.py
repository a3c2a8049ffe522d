"""The queue of this process: `ports.Queue` without Redis. Knows when to ask for a place and for whom; never chooses a
replica, and knows nothing of HTTP.

Nobody wakes for nothing: the pump places the head of a line in one synchronous step and hands it the lease. The task
that waits may be cancelled between that step and its waking; it then gives the lease back.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from router.admission.bands import BandTerms
from router.admission.displacing import Displaceable
from router.admission.line import Line
from router.admission.pace import Pace, Service
from router.admission.ration import PoolRation, Ration
from router.admission.tokens import actual_tokens, expected_tokens, learn_output, queued_tokens
from router.admission.waiters import Waiter, standing_of
from router.core import Demand, Lease, Outcome, Pool, Whereabouts
from router.errors import Displaced, Expired, Hopeless, NoReplica, Overloaded, PointsmanError
from router.ports import Clock, Placer

MAX_RETRY_AFTER_S = 60.0
# Where no replica is ready the pace says nothing; a few probe intervals from now one may be.
RETRY_WITHOUT_REPLICA_S = 5.0
# When places get short, each flow may take what the pool serves in so long before it is held to its fair share: short
# waits are shared by all, where else a heavy tenant alone would be late.
GRACE_S = 1.5

Place = asyncio.Future[Lease]


@dataclass(eq=False, slots=True)
class _PoolLine:
    """A pool's waiters and how fast they get their places."""

    line: Line[Place]
    ration: PoolRation | None = None
    pace: Pace = field(default_factory=Pace)
    service: Service = field(default_factory=Service)
    displaceable: Displaceable = field(default_factory=Displaceable)
    is_pump_due: bool = False

    def begin_shortage(self) -> None:
        """Nobody waits, and somebody is about to."""
        self.line.flows.begin_shortage(self.line.flows.open_tokens * self.grace())

    def grace(self) -> float:
        """What each flow may then take, as a share of the tokens in use."""
        return self.service.share_ended_within(GRACE_S)


@dataclass(eq=False, slots=True)
class LocalQueue:
    """One ordered line per pool. `max_waiting` bounds each line, so that one model's crowd refuses no other's;
    `max_wait_s` is from joining the line, within the request's own deadline; `terms` may set it by band.

    `pump` must be called on every change that may open a place: a release, a replica ready, an adapter loaded, a
    breaker that lets a probe through. Nothing here polls. `on_waiting(num)` is told when somebody begins or ends to
    wait: other processes then see to it that we hear of a place that they free. With a `ration` other routers share the
    replicas: it says how many places are ours, and while any router has waiters, whose turn it is.
    """

    placer: Placer
    clock: Clock
    max_waiting: int
    max_wait_s: float
    on_waiting: Callable[[int], None] | None = None
    terms: BandTerms | None = None
    ration: Ration | None = None
    _terms: BandTerms = field(init=False)
    _lines: dict[str, _PoolLine] = field(default_factory=dict, init=False)
    _sequence: Iterator[int] = field(default_factory=itertools.count, init=False)
    _waiters: dict[int, Waiter[Place]] = field(default_factory=dict, init=False)
    _granted: dict[Lease, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if self.max_waiting < 0:
            raise ValueError("max_waiting must not be negative")
        if self.max_wait_s <= 0.0:
            raise ValueError("max_wait_s must be above 0")
        self._terms = self.terms or BandTerms.with_wait(self.max_wait_s)
        if self.ration is not None:
            self.ration.granted, self.ration.reopened = self._grant, self._open

    async def place(self, demand: Demand) -> Lease:
        """See `ports.Queue`. The first try is synchronous, before any await.

        Raises Overloaded where the line is full, Hopeless where the wait would outlast what is allowed; a demand that
        has had a replica was let in before, and joins all the same. Raises NoReplica or Expired when the wait is over
        without a place, Displaced when a request of a higher band needed the place in line.
        """
        now = self.clock()
        if now >= demand.request.deadline:
            raise Expired("the deadline had passed before a place was asked for")
        queue = self._line_of(demand.pool)
        if not queue.line.is_held_up(demand) and (queue.ration is None or queue.ration.may_start()):
            lease = self.placer.place(demand)
            if lease is not None:
                self._charge(queue, lease, now)
                return lease
        if not demand.tried and not demand.num_displaced:
            self._admit(queue, demand, now)
        return await self._wait(queue, demand, now)

    def pump(self) -> None:
        for queue in self._lines.values():
            if len(queue.line):
                self._advance(queue)

    @property
    def num_waiting(self) -> int:
        return sum([queue.line.num_waiting for queue in self._lines.values()])

    def num_waiting_in(self, pool: Pool) -> int:
        queue = self._lines.get(pool.model)
        return len(queue.line) if queue else 0

    def unready_waiting(self) -> Mapping[str, int]:
        """How many wait for each model that has no ready replica: somebody should start or wake one."""
        found: dict[str, int] = {}
        for model, queue in self._lines.items():
            oldest = queue.line.oldest if queue.line.num_waiting else None
            if oldest is not None and not self.placer.has_ready(oldest.demand):
                found[model] = queue.line.num_waiting
        return found

    def oldest_wait_s(self, pool: Pool) -> float:
        """How long the longest waiter of the pool has waited; 0 where nobody waits."""
        queue = self._lines.get(pool.model)
        oldest = queue.line.oldest if queue else None
        return self.clock() - oldest.joined_at if oldest else 0.0

    def whereabouts(self, demand: Demand) -> Whereabouts | None:
        """Of this very demand; None where it does not wait."""
        waiter, queue = self._waiters.get(id(demand)), self._lines.get(demand.pool.model)
        if waiter is None or queue is None or waiter.has_left:  # it has its place, and has not woken yet
            return None
        num_ahead = queue.line.num_ahead_of(waiter)
        return Whereabouts(num_ahead + 1, queue.pace.seconds_for(num_ahead + 1, self.clock()))

    def _line_of(self, pool: Pool) -> _PoolLine:
        queue = self._lines.get(pool.model)
        if queue is None:
            ration = None if self.ration is None else self.ration.pool(pool.model)
            queue = self._lines[pool.model] = _PoolLine(Line(self._terms), ration)
            if ration is not None:
                ration.turns.grace = queue.grace
        return queue

    def _until(self, demand: Demand, now: float) -> float:
        """When its wait ends at the latest."""
        longest_s = self._terms.max_waits_s[standing_of(demand).band]
        deadline = demand.request.deadline
        return deadline if longest_s is None else min(deadline, now + longest_s)

    def _admit(self, queue: _PoolLine, demand: Demand, now: float) -> None:
        """Whether a newcomer may join the line; somebody of less right gives way where it is full."""
        if not len(queue.line):
            queue.pace.began(now)  # that nobody got a place while nobody waited is no standstill
        if queue.pace.is_known and self.placer.has_ready(demand):
            standing = standing_of(demand)
            num_ahead, flow = queue.line.num_ahead(standing), queue.line.flows.get(standing)
            wait_s = queue.pace.seconds_for(num_ahead + 1, now) or 0.0
            if flow.num_waiting and flow.pace.is_known:  # what others will yet ask for shows in its own pace only
                wait_s = max(wait_s, flow.pace.seconds_for(flow.num_waiting + 1, now) or 0.0)
            deadline = demand.request.deadline
            ends_at = now + wait_s + min(queue.service.long_s, 0.5 * (deadline - now))
            surplus_s = max(now + wait_s - self._until(demand, now), ends_at - deadline)
            if surplus_s > 0.0:
                message = f"{num_ahead} requests are before this one: it would wait about {wait_s:.0f} s, too long"
                raise Hopeless(message, retry_after_s=min(MAX_RETRY_AFTER_S, max(1.0, surplus_s)))
        if len(queue.line) >= self.max_waiting:
            victim = queue.line.victim(standing_of(demand)) if self.max_waiting else None
            if victim is None:
                raise self._overloaded(queue, now)
            queue.line.leave(victim)
            if not victim.ticket.done():
                retry_after_s = self._overloaded(queue, now).retry_after_s
                message = "a request of more right needed the place in a full queue"
                victim.ticket.set_exception(Displaced(message, retry_after_s=retry_after_s))

    async def _wait(self, queue: _PoolLine, demand: Demand, now: float) -> Lease:
        loop = asyncio.get_running_loop()
        if not len(queue.line):
            queue.pace.began(now)
            queue.begin_shortage()
        if not (flow := queue.line.flows.get(standing_of(demand))).num_waiting:
            flow.pace.began(now)
        waiter = queue.line.join(demand, loop.create_future(), now, next(self._sequence))
        timer = loop.call_later(self._until(demand, now) - now, self._expire, queue, waiter)
        self._waiters[id(demand)] = waiter
        if queue.ration is not None:
            queue.ration.join(waiter, queued_tokens(demand, queue.line.flows.get(waiter.standing)))
        self._tell_waiting()
        try:
            queue.displaceable.displace_for(demand)
            return await waiter.ticket
        except BaseException:
            queue.line.leave(waiter)
            self._give_back(queue, waiter.ticket)
            raise
        finally:
            timer.cancel()
            if queue.ration is not None:
                queue.ration.leave(waiter)
            del self._waiters[id(demand)]
            self._tell_waiting()

    def _tell_waiting(self) -> None:
        if self.on_waiting is not None:
            self.on_waiting(self.num_waiting)

    def _give_back(self, queue: _PoolLine, place: Place) -> None:
        """Release the lease that a waiter got in the very tick in which it was cancelled, and place the next."""
        if place.done() and not place.cancelled() and place.exception() is None:
            place.result().release(Outcome.CLIENT_GONE)
            self._advance(queue)

    def _advance(self, queue: _PoolLine) -> None:
        if queue.ration is not None and queue.ration.is_ordering:
            return  # places come as grants
        if queue.line.advance(lambda waiter: self._serve(queue, waiter)) and not queue.is_pump_due:
            queue.is_pump_due = True
            asyncio.get_running_loop().call_soon(self._resume, queue)

    def _resume(self, queue: _PoolLine) -> None:
        queue.is_pump_due = False
        self._advance(queue)

    def _serve(self, queue: _PoolLine, waiter: Waiter[Place]) -> bool:
        """Is this waiter done with the line? Place it, unless its task was cancelled and has not run since."""
        if waiter.ticket.done():
            return True
        if queue.ration is not None and not queue.ration.may_start():
            return False
        return self._place_waiter(queue, waiter)

    def _place_waiter(self, queue: _PoolLine, waiter: Waiter[Place]) -> bool:
        request = waiter.demand.request
        # One that was in a hurry from the start is not judged by how long others take.
        least_s = min(1.5 * queue.service.mean_s, 0.25 * (request.deadline - request.arrived))
        if self.clock() + least_s > request.deadline:
            waiter.ticket.set_exception(Expired("no time is left to answer before the deadline"))
            return True
        try:
            lease = self.placer.place(waiter.demand)
        except Exception as error:
            # It is this waiter's error: whoever happened to pump must not get it.
            waiter.ticket.set_exception(error)
            return True
        if lease is not None:
            now = self.clock()
            self._charge(queue, lease, now)
            queue.pace.gave(now)
            queue.line.flows.get(waiter.standing).pace.gave(now)
            waiter.ticket.set_result(lease)
            if queue.ration is not None:
                queue.ration.leave(waiter)
        return lease is not None

    def _grant(self, model: str, waiter: Waiter[Place]) -> bool:
        """Its turn has come among all routers. False where it fits no place now."""
        queue = self._lines[model]
        tokens = queued_tokens(waiter.demand, queue.line.flows.get(waiter.standing))
        is_done = waiter.ticket.done() or self._place_waiter(queue, waiter)
        if is_done:
            queue.line.leave(waiter)
            if waiter.ticket.done() and not waiter.ticket.cancelled() and waiter.ticket.exception() is None:
                self._granted[waiter.ticket.result()] = tokens
        return is_done

    def _open(self, model: str) -> None:
        queue = self._lines.get(model)
        if queue is not None and len(queue.line):
            self._advance(queue)

    def _charge(self, queue: _PoolLine, lease: Lease, now: float) -> None:
        """Its flow pays at once for what the request will likely take."""
        line, standing = queue.line, standing_of(lease.demand)
        flow = line.flows.get(standing)
        lease.charged_tokens = num_tokens = expected_tokens(lease, flow)
        lease.charge_rate = line.serve(flow, standing.band, num_tokens, now)
        lease.when_released(self._settle)
        if queue.ration is not None:
            queue.ration.took(lease)
        queue.displaceable.add(lease)

    def _settle(self, lease: Lease) -> None:
        """Its flow pays for what it took in truth, and gets back the rest."""
        standing, queue = standing_of(lease.demand), self._line_of(lease.demand.pool)
        taken, flow = actual_tokens(lease), queue.line.flows.get(standing)
        if lease.outcome is Outcome.OK:
            ended_at = self.clock() if lease.ended_at is None else lease.ended_at
            queue.service.ended(ended_at - lease.taken_at)
        learn_output(flow, lease)
        queue.line.settle(flow, taken, lease.charged_tokens, lease.charge_rate)
        charged = self._granted.pop(lease, None) if self._granted else None
        if charged is not None and queue.ration is not None:
            queue.ration.turns.settle(standing, (taken - charged) / standing.weight)

    def _expire(self, queue: _PoolLine, waiter: Waiter[Place]) -> None:
        if waiter.ticket.done():
            return
        queue.line.leave(waiter)
        waiter.ticket.set_exception(self._too_late(waiter))

    def _too_late(self, waiter: Waiter[Place]) -> PointsmanError:
        model, waited_s = waiter.demand.pool.model, self.clock() - waiter.joined_at
        if self.placer.has_ready(waiter.demand):
            return Expired(f"no place for model {model} within {waited_s:.1f} s: all its replicas are busy")
        retry_after_s = RETRY_WITHOUT_REPLICA_S
        return NoReplica(f"no replica of model {model} was ready within {waited_s:.1f} s", retry_after_s=retry_after_s)

    def _overloaded(self, queue: _PoolLine, now: float) -> Overloaded:
        drained_s = queue.pace.seconds_for(len(queue.line), now)
        retry_after_s = min(MAX_RETRY_AFTER_S, max(1.0, self.max_wait_s if drained_s is None else drained_s))
        return Overloaded(f"{len(queue.line)} requests wait for this model already", retry_after_s=retry_after_s)

    def __repr__(self) -> str:
        return f"<LocalQueue {self.num_waiting} waiting for {len(self._lines)} models>"
