"""Limits that hold over all routers: each account's in parts that this router gives out by itself, and asks Redis for
more of. Knows accounts and the store; knows no requests and no keys.

Nobody may have more than Redis has given: where a part is used up, the request waits for the next one, for as long as
Redis may take. While Redis is away each router goes by its part of every limit: one over the number of routers known.
"""

import asyncio
import contextlib
import itertools
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from router.admission.accounts import Account, Allotment
from router.admission.callers import Callers
from router.admission.meters import DAY, MONTH, period_of
from router.ports import Clock
from router.store import names
from router.store.connection import Script, Store, stopped
from router.store.errors import StoreAway

# Between looks at places that are not used, and between full syncs.
RETURN_S, SYNC_S = 0.05, 1.0
LEASE_MS = 5000
# A part is what the rate yields in so long, and at least one.
SLICE_S = 0.25
ALLOT = Script((Path(__file__).parent / "lua" / "allot.lua").read_text())


@dataclass(eq=False, slots=True)
class Allotments:
    """`num_routers()` as far as is known. `opened` syncs what is open and returns what is not used, once a second."""

    store: Store
    router: str
    callers: Callers
    clock: Clock
    num_routers: Callable[[], int]
    unix_clock: Callable[[], float] = time.time
    _asking: dict[Account, asyncio.Lock] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.callers.refill = self.refill

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            await stopped(task)
            await self._return_all()

    async def refill(self, account: Account, num_tokens: float) -> None:
        """Have a part for one more request, and for so many tokens; when it cannot be had, the account goes alone."""
        if not self.store.is_up:
            self._let_alone(account)
            return
        async with self._lock(account):
            allotment = account.allotment
            if allotment is None:
                allotment = account.allotment = Allotment()
            if account.is_short(num_tokens):
                await self._ask(account, allotment, num_tokens)

    async def _run(self) -> None:
        for turn in itertools.count(1):
            await asyncio.sleep(RETURN_S)
            is_full_turn = turn % round(SYNC_S / RETURN_S) == 0
            for account in list(self.callers.accounts.values()):
                if not self.store.is_up:
                    self._let_alone(account)
                elif account.allotment is not None and (is_full_turn or account.has_idle_places):
                    async with self._lock(account):
                        await self._sync(account, is_full_turn)
            for account in self._asking.keys() - set(self.callers.accounts.values()):
                del self._asking[account]

    def _lock(self, account: Account) -> asyncio.Lock:
        return self._asking.setdefault(account, asyncio.Lock())

    async def _ask(self, account: Account, allotment: Allotment, num_tokens: float) -> None:
        limits = account.limits
        requests = max(1, math.ceil((limits.requests_per_minute or 0) * SLICE_S / 60.0)) - allotment.requests
        tokens = max(1, math.ceil((limits.tokens_per_minute or 0) * SLICE_S / 60.0), num_tokens)
        tokens -= max(0.0, allotment.tokens)
        await self._exchange(account, allotment, max(0.0, requests), max(0.0, tokens), more=1)

    async def _sync(self, account: Account, is_full_turn: bool) -> None:
        """What is open, that we live, and, where nothing was used for a turn, all that is left."""
        allotment = account.allotment
        if allotment is None:
            return
        is_idle = is_full_turn and not allotment.is_used
        if is_full_turn:
            allotment.is_used = False
        if is_idle and not (allotment.requests or allotment.tokens or allotment.places):
            return
        back = (allotment.requests, max(0.0, allotment.tokens)) if is_idle else (0.0, 0.0)
        await self._exchange(account, allotment, -back[0], -back[1], more=0)

    async def _return_all(self) -> None:
        for account in list(self.callers.accounts.values()):
            allotment = account.allotment
            if allotment is not None and self.store.is_up:
                tokens = max(0.0, allotment.tokens)
                await self._exchange(account, allotment, -allotment.requests, -tokens, more=0)

    async def _exchange(
        self, account: Account, allotment: Allotment, requests: float, tokens: float, *, more: int
    ) -> None:
        """Wish for more, or give back where negative: what is given back is not ours from this moment on."""
        owed, limits, unix_s = max(0.0, -allotment.tokens), account.limits, self.unix_clock()
        allotment.requests += min(0.0, requests)
        allotment.tokens += min(0.0, tokens) + owed
        allotment.places = account.num_open
        most = (
            limits.requests_per_minute,
            limits.tokens_per_minute,
            limits.concurrent_requests,
            limits.tokens_per_day,
            limits.tokens_per_month,
        )
        limits_now = [-1 if each is None else each for each in most]
        periods = [period_of(unix_s, DAY), period_of(unix_s, MONTH)]
        wishes = [f"{requests:.3f}", f"{tokens:.3f}", f"{owed:.3f}", account.num_open, more, LEASE_MS]
        try:
            answer = await self.store.run(
                ALLOT, [names.account(account.name)], [self.router, *limits_now, *periods, *wishes]
            )
        except StoreAway:
            self._let_alone(account)
        else:
            _take(allotment, [float(word) for word in answer])

    def _let_alone(self, account: Account) -> None:
        account.allotment = None
        account.divide(max(1, self.num_routers()))


def _take(allotment: Allotment, answer: Sequence[float]) -> None:
    requests, tokens, places, request_level, token_level, day_left, month_left = answer
    allotment.requests += max(0.0, requests)
    allotment.tokens += max(0.0, tokens)
    allotment.places = int(places)
    allotment.request_level, allotment.token_level = request_level, token_level
    allotment.day_left, allotment.month_left = day_left, month_left
