"""What a key, or a tenant, has used of its limits, and whether it may have more. Knows limits and seconds; knows no
HTTP, no queue and no Redis: those who share an account set `shared`, and fill it.

A rate holds while the model's replicas are busy; before that, and unless it is strict, it is only counted: what nobody
else has a use for may be had. Budgets and concurrency hold always.
"""

import math
from dataclasses import dataclass, field

from router.admission.meters import DAY, MONTH, Budget, Rate, duration, seconds_left
from router.admission.records import NO_LIMITS, Limits
from router.core import Headers
from router.errors import BudgetSpent, RateLimited

MAX_RETRY_AFTER_S = 60.0


@dataclass(eq=False, slots=True)
class Account:
    """`name` is for people: the key's or the tenant's. `share` is ours of every limit where routers count apart."""

    name: str
    limits: Limits
    at: float
    num_open: int = 0
    share: float = 1.0
    requests: Rate | None = field(init=False, default=None)
    tokens: Rate | None = field(init=False, default=None)
    day: Budget | None = field(init=False, default=None)
    month: Budget | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        limits, self.limits = self.limits, NO_LIMITS
        self.change(limits, self.at)

    def change(self, limits: Limits, now: float) -> None:
        """Other limits from now on; what was used stays used."""
        if limits == self.limits:
            return
        self.limits = limits
        self.requests = _rate(self.requests, limits.requests_per_minute, now, self.share)
        self.tokens = _rate(self.tokens, limits.tokens_per_minute, now, self.share)
        self.day = _budget(self.day, limits.tokens_per_day, DAY, self.share)
        self.month = _budget(self.month, limits.tokens_per_month, MONTH, self.share)

    def divide(self, num_routers: int) -> None:
        """Each of so many routers counts for itself."""
        self.share = 1.0 / num_routers
        for meter in (self.requests, self.tokens, self.day, self.month):
            if meter is not None:
                meter.share = self.share
                meter.take(0.0)

    @property
    def most_open(self) -> float:
        limit = self.limits.concurrent_requests
        return math.inf if limit is None else max(1.0, math.floor(limit * self.share))

    def enter(self, now: float, unix_s: float, *, is_busy: bool) -> None:
        """One request more; the caller owes a `leave`. Raises RateLimited or BudgetSpent; then nothing is counted."""
        if self.num_open >= self.most_open:
            raise RateLimited(f"{self.name} has {self.num_open} requests open, as many as it may", retry_after_s=1.0)
        self._check_budgets(unix_s)
        if self.requests is not None:
            self.requests.refill(now)
            self._check_rate(self.requests, 1.0, "requests", is_busy=is_busy)
            self.requests.take(min(1.0, max(0.0, self.requests.level)))
        self.num_open += 1

    def charge(self, num_tokens: float, now: float, unix_s: float, *, is_busy: bool) -> None:
        """The request's size is known. Raises RateLimited or BudgetSpent, and then nothing is charged."""
        self._check_budgets(unix_s)
        if self.tokens is not None:
            self.tokens.refill(now)
            self._check_rate(self.tokens, num_tokens, "tokens", is_busy=is_busy)
        self.take_tokens(num_tokens)

    def take_tokens(self, num_tokens: float) -> None:
        """So many more, or less than none, than were charged; no question asked."""
        for meter in (self.tokens, self.day, self.month):
            if meter is not None:
                meter.take(num_tokens)
        if self.tokens is not None and not self.limits.is_strict:
            self.tokens.level = max(self.tokens.level, 0.0)  # what was free is not paid for later

    def leave(self) -> None:
        self.num_open -= 1

    def headers(self, now: float) -> Headers:
        """OpenAI's x-ratelimit fields, of the rates that there are."""
        found: list[tuple[str, str]] = []
        for kind, rate in (("requests", self.requests), ("tokens", self.tokens)):
            if rate is not None:
                level = rate.refill(now)
                found += [
                    (f"x-ratelimit-limit-{kind}", f"{rate.per_minute:.0f}"),
                    (f"x-ratelimit-remaining-{kind}", str(max(0, math.floor(level)))),
                    (f"x-ratelimit-reset-{kind}", duration(rate.seconds_until(rate.most))),
                ]
        return tuple(found)

    def _check_rate(self, rate: Rate, wanted: float, kind: str, *, is_busy: bool) -> None:
        if rate.level >= wanted or not (is_busy or self.limits.is_strict):
            return
        if wanted > rate.most:
            raise RateLimited(f"the request takes {wanted:.0f} {kind}, {self.name} may have {rate.most:.0f} a minute")
        wait_s = rate.seconds_until(wanted)
        raise RateLimited(
            f"{self.name} has had its {rate.per_minute:.0f} {kind} a minute",
            retry_after_s=min(MAX_RETRY_AFTER_S, wait_s),
            headers=self.headers(rate.at),
        )

    def _check_budgets(self, unix_s: float) -> None:
        for budget, name in ((self.day, "day"), (self.month, "month")):
            if budget is not None and budget.turn(unix_s) <= 0.0:
                left = duration(seconds_left(unix_s, budget.num_period_chars))
                raise BudgetSpent(f"{self.name} has spent its {budget.amount:.0f} tokens of this {name}; {left} to go")

    def __repr__(self) -> str:
        return f"<Account {self.name} {self.num_open} open, {self.requests}, {self.tokens}>"


def _rate(before: Rate | None, per_minute: int | None, now: float, share: float) -> Rate | None:
    if per_minute is None:
        return None
    used = 0.0 if before is None else before.most - before.refill(now)
    rate = Rate(per_minute, now, share)
    rate.take(used)
    return rate


def _budget(before: Budget | None, amount: int | None, num_chars: int, share: float) -> Budget | None:
    if amount is None:
        return None
    budget = Budget(amount, num_chars, share=share)
    if before is not None:
        budget.period, budget.used = before.period, before.used
    return budget
