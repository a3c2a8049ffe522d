"""The queue of this process: `ports.Queue` without Redis. Knows when to ask for a place and for whom; never chooses a
replica, and knows nothing of HTTP.

Nobody wakes for nothing: the pump places the head of a line in one synchronous step and hands it the lease. The task
that waits may be cancelled between that step and its waking; it then gives the lease back.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from router.admission.line import Line, Waiter
from router.admission.pace import Pace
from router.core import Demand, Lease, Outcome, Pool
from router.errors import Expired, NoReplica, Overloaded, PointsmanError
from router.ports import Clock, Placer

MAX_RETRY_AFTER_S = 60.0
# Where no replica is ready the pace says nothing; a few probe intervals from now one may be.
RETRY_WITHOUT_REPLICA_S = 5.0

Place = asyncio.Future[Lease]


@dataclass(eq=False, slots=True)
class _PoolLine:
    """A pool's waiters and how fast they get their places."""

    line: Line[Place] = field(default_factory=Line)
    pace: Pace = field(default_factory=Pace)
    is_pump_due: bool = False


@dataclass(eq=False, slots=True)
class LocalQueue:
    """One ordered line per pool. `max_waiting` bounds each line, so that one model's crowd refuses no other's;
    `max_wait_s` is from joining the line, within the request's own deadline.

    `pump` must be called on every change that may open a place: a release, a replica ready, an adapter loaded, a
    breaker that lets a probe through. Nothing here polls. `on_waiting(num)` is told when somebody begins or ends to
    wait: other processes then see to it that we hear of a place that they free.
    """

    placer: Placer
    clock: Clock
    max_waiting: int
    max_wait_s: float
    on_waiting: Callable[[int], None] | None = None
    _lines: dict[str, _PoolLine] = field(default_factory=dict, init=False)
    _sequence: Iterator[int] = field(default_factory=itertools.count, init=False)

    def __post_init__(self) -> None:
        if self.max_waiting < 0:
            raise ValueError("max_waiting must not be negative")
        if self.max_wait_s <= 0.0:
            raise ValueError("max_wait_s must be above 0")

    async def place(self, demand: Demand) -> Lease:
        """See `ports.Queue`. The first try is synchronous, before any await.

        Raises Overloaded where the line is full; a demand that has tried a replica was let in before, and joins a full
        line all the same. Raises NoReplica or Expired when the wait is over without a place.
        """
        now = self.clock()
        if now >= demand.request.deadline:
            raise Expired("the deadline had passed before a place was asked for")
        queue = self._line_of(demand.pool)
        if not queue.line.is_held_up(demand):
            lease = self.placer.place(demand)
            if lease is not None:
                return lease
        if len(queue.line) >= self.max_waiting and not demand.tried:
            raise self._overloaded(queue, now)
        return await self._wait(queue, demand, now)

    def pump(self) -> None:
        for queue in self._lines.values():
            if len(queue.line):
                self._advance(queue)

    @property
    def num_waiting(self) -> int:
        return sum(len(queue.line) for queue in self._lines.values())

    def num_waiting_in(self, pool: Pool) -> int:
        queue = self._lines.get(pool.model)
        return len(queue.line) if queue else 0

    def oldest_wait_s(self, pool: Pool) -> float:
        """How long the longest waiter of the pool has waited; 0 where nobody waits."""
        queue = self._lines.get(pool.model)
        oldest = queue.line.oldest if queue else None
        return self.clock() - oldest.joined_at if oldest else 0.0

    def _line_of(self, pool: Pool) -> _PoolLine:
        queue = self._lines.get(pool.model)
        if queue is None:
            queue = self._lines[pool.model] = _PoolLine()
        return queue

    async def _wait(self, queue: _PoolLine, demand: Demand, now: float) -> Lease:
        loop = asyncio.get_running_loop()
        if not len(queue.line):
            queue.pace.began(now)
        waiter = queue.line.join(demand, loop.create_future(), now, next(self._sequence))
        until = min(demand.request.deadline, now + self.max_wait_s)
        timer = loop.call_later(until - now, self._expire, queue, waiter)
        self._tell_waiting()
        try:
            return await waiter.ticket
        except BaseException:
            queue.line.leave(waiter)
            self._give_back(queue, waiter.ticket)
            raise
        finally:
            timer.cancel()
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
        try:
            lease = self.placer.place(waiter.demand)
        except Exception as error:
            # It is this waiter's error: whoever happened to pump must not get it.
            waiter.ticket.set_exception(error)
            return True
        if lease is not None:
            queue.pace.gave(self.clock())
            waiter.ticket.set_result(lease)
        return lease is not None

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
