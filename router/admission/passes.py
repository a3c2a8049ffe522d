"""One request's way through the gate: what it was let in as, and what it owes the accounts of its caller. Knows
accounts and tokens; knows no keys and no queue.
"""

import time
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from router.admission.accounts import Account
from router.core import Headers, Request, Standing, Usage
from router.errors import PointsmanError
from router.ports import Clock

# Of an answer whose length the request does not bound.
DEFAULT_OUTPUT_TOKENS = 128


Refill = Callable[[Account, float], Awaitable[None]]


class Pass(msgspec.Struct, gc=False):
    """`accounts` is empty for most: then nothing here need be called. `is_busy()` tells whether replicas of the model
    are: rates hold then. `refill(account, num_tokens)` asks those who share an account."""

    standing: Standing
    key_id: str | None = None
    accounts: Sequence[Account] = ()
    clock: Clock = time.monotonic
    unix_clock: Callable[[], float] = time.time
    is_busy: Callable[[], bool] = lambda: False
    refill: Refill | None = None
    num_charged: float = 0.0
    has_entered: bool = False

    async def enter(self) -> None:
        """Count it in every account, or in none. Waits only where routers that share an account must be asked.

        Raises RateLimited or BudgetSpent.
        """
        await self._refill(0.0)
        now, unix_s, is_busy = self.clock(), self.unix_clock(), self.is_busy()
        for number, account in enumerate(self.accounts):
            try:
                account.enter(now, unix_s, is_busy=is_busy)
            except PointsmanError:
                for entered in self.accounts[:number]:
                    entered.leave()
                raise
        self.has_entered = True

    async def charge(self, request: Request, num_prompt_tokens: int) -> None:
        """The prompt's length is known. Waits as `enter` does. Raises RateLimited or BudgetSpent."""
        most = request.max_tokens
        num_tokens = num_prompt_tokens + (DEFAULT_OUTPUT_TOKENS if most is None else most)
        await self._refill(num_tokens)
        now, unix_s, is_busy = self.clock(), self.unix_clock(), self.is_busy()
        for number, account in enumerate(self.accounts):
            try:
                account.charge(num_tokens, now, unix_s, is_busy=is_busy)
            except PointsmanError:
                for charged in self.accounts[:number]:
                    charged.take_tokens(-num_tokens)
                raise
        self.num_charged = num_tokens

    def leave(self, usage: Usage | None) -> None:
        """It is over, and took what the replica says; what began and says nothing took what was charged."""
        if not self.has_entered:
            return
        difference = self._num_used(usage) - self.num_charged
        for account in self.accounts:
            account.leave()
            if difference:
                account.take_tokens(difference)

    def headers(self) -> Headers:
        """x-ratelimit fields, of the first account that has rates: the key's before the tenant's."""
        now = self.clock()
        return next((found for account in self.accounts if (found := account.headers(now))), ())

    async def _refill(self, num_tokens: float) -> None:
        if self.refill is not None:
            for account in self.accounts:
                if account.is_short(num_tokens):
                    await self.refill(account, num_tokens)

    def _num_used(self, usage: Usage | None) -> float:
        if usage is None or (usage.first_token_s is None and usage.output_tokens is None):
            return 0.0
        if usage.output_tokens is None or usage.prompt_tokens is None:
            return self.num_charged
        return usage.prompt_tokens + usage.output_tokens
