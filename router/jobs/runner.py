"""Runs jobs: claims them as there is room, serves each like any other request, and says what came of it. Knows the
book's moves and the proxy's reply; knows nothing of Redis, of files or of webhooks.

A job waits behind everybody who waits for an answer: it is claimed only while there is room, and has a low class in the
queue. It is renewed while it runs; a lease that is lost stops it here, because another has it by then.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from router.core import Band, Request, Standing, Surface
from router.errand import Errand
from router.errors import PointsmanError
from router.headers import find
from router.jobs.book import LEASE_S, JobBook
from router.jobs.states import Claimed, JobState
from router.openai import error_body
from router.ports import Clock, Reply
from router.store.errors import StoreAway
from router.transports.asking import new_request
from router.transports.outbox import Outbox

Begin = Callable[[Request, Reply], Errand]

MAX_RESULT_BYTES = 16 * 2**20
IDLE_S = 0.25
SWEEP_S = 1.0
RENEW_S = LEASE_S / 3
# Answers after which another try may help: the replicas' and the router's own troubles, and being too many.
_AGAIN = frozenset((408, 425, 429, 500, 502, 503, 504))
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answered:
    """How a request of a job ended. `retry_after_s` is what the answer asked for."""

    status: int
    body: bytes
    is_complete: bool
    retry_after_s: float = 0.0


@dataclass(eq=False, slots=True)
class JobRunner:
    """`num_free()` is how many more requests may be begun now. `run` ends when it is cancelled; what it held by then
    waits for another."""

    book: JobBook
    begin: Begin
    clock: Clock
    num_free: Callable[[int], int]
    request_timeout_s: float = 600.0
    held: dict[str, tuple[Claimed, Errand | None]] = field(default_factory=dict)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def wake(self) -> None:
        """A job was submitted here: it need not wait for the next look."""
        self._news.set()

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._claim_forever(group))
                group.create_task(_repeat(RENEW_S, self._renew))
                group.create_task(_repeat(SWEEP_S, self._sweep))
        finally:
            held = [claimed for claimed, _ in self.held.values()]
            with contextlib.suppress(StoreAway):
                await asyncio.shield(self.book.give_back(held))

    async def _claim_forever(self, group: asyncio.TaskGroup) -> None:
        while True:
            claimed: list[Claimed] = []
            if (num_free := self.num_free(len(self.held))) > 0:
                with contextlib.suppress(StoreAway):
                    claimed = await self.book.claim(num_free)
            for each in claimed:
                self.held[each.id] = (each, None)
                group.create_task(self._serve(each))
            if not claimed:
                self._news.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(IDLE_S):
                        await self._news.wait()

    async def _serve(self, claimed: Claimed) -> None:
        try:
            answered = await self._answer(claimed)
            if claimed.id in self.held:  # else it was taken from us
                await self._end(claimed, answered)
        except StoreAway as error:
            log.warning("the end of job %s could not be told: it will be run again: %s", claimed.id, error)
        # Not where it is cancelled: what is held then is given back.
        self.held.pop(claimed.id, None)
        self._news.set()

    async def _answer(self, claimed: Claimed) -> Answered:
        try:
            request = self._request(claimed)
        except PointsmanError as error:
            return Answered(error.status, error_body(error), is_complete=True)
        outbox = Outbox()
        errand = self.begin(request, outbox)
        self.held[claimed.id] = (claimed, errand)
        pieces, num_bytes = [], 0
        try:
            while (payload := await outbox.read()) is not None:
                num_bytes += len(payload)
                if num_bytes > MAX_RESULT_BYTES:
                    outbox.leave()
                    return Answered(413, b"", is_complete=True)
                pieces.append(payload)
        finally:
            outbox.leave()
        wait = find(outbox.headers, "retry-after")
        wait_s = float(wait) if wait is not None and wait.isdigit() else 0.0
        return Answered(outbox.status, b"".join(pieces), outbox.is_complete, wait_s)

    def _request(self, claimed: Claimed) -> Request:
        now = self.clock()
        standing = Standing(tenant=claimed.owner, band=Band.BULK)
        return new_request(
            Surface(claimed.surface), claimed.body, (), now, now + self.request_timeout_s, standing=standing
        )

    async def _end(self, claimed: Claimed, answered: Answered) -> None:
        if answered.is_complete and 200 <= answered.status < 300:
            await self.book.end(claimed, JobState.SUCCEEDED, answered.status, answered.body)
            return
        fault = f"It was answered with {answered.status}." if answered.status else "It was not answered."
        may_help = not answered.is_complete or not answered.status or answered.status in _AGAIN
        state = JobState.WAITING if may_help else JobState.FAILED
        await self.book.end(claimed, state, answered.status, answered.body, fault, answered.retry_after_s)

    async def _renew(self) -> None:
        held = [claimed for claimed, _ in self.held.values()]
        if not held:
            return
        for claimed, found in zip(held, await self.book.renew(held), strict=True):
            if found.is_cancelled:
                await self._cancel(claimed)
            elif not found.is_held:
                self._stop(claimed)

    async def _cancel(self, claimed: Claimed) -> None:
        self._stop(claimed)
        await self.book.end(claimed, JobState.CANCELLED, fault="It was cancelled.")

    def _stop(self, claimed: Claimed) -> None:
        _, errand = self.held.pop(claimed.id, (claimed, None))
        if errand is not None:
            errand.cancel()

    async def _sweep(self) -> None:
        await self.book.sweep()

    def __repr__(self) -> str:
        return f"<JobRunner {len(self.held)} jobs>"


async def _repeat(interval_s: float, step: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(interval_s)
        with contextlib.suppress(StoreAway):
            await step()
