"""What a key, or a tenant, has used of its limits, and whether it may have more. Knows limits and seconds; knows no
HTTP, no queue and no Redis: those who share an account set `shared`, and fill it.

A rate holds while the model's replicas are busy; before that, and unless it is strict, it is only counted: what nobody
else has a use for may be had. Budgets and concurrency hold always.
"""

import math
from dataclasses import dataclass, field

from router.admission.meters import DAY, MINUTE_S, MONTH, Budget, Rate, duration, seconds_left
from router.admission.records import NO_LIMITS, Limits
from router.core import Headers
from router.errors import BudgetSpent, RateLimited

MAX_RETRY_AFTER_S = 60.0


@dataclass(eq=False, slots=True)
class Allotment:
    """What of an account's limits this router may give out by itself, and what all routers together had left of it when
    it was last asked. Tokens below 0 are owed. `is_used`: since the last sync."""

    requests: float = 0.0
    tokens: float = 0.0
    places: int = 0
    request_level: float = 0.0
    token_level: float = 0.0
    day_left: float = 0.0
    month_left: float = 0.0
    is_used: bool = True


@dataclass(eq=False, slots=True)
class Account:
    """`name` is for people: the key's or the tenant's. `share` is ours of every limit where routers count apart;
    `allotment` is what counts where they count together."""

    name: str
    limits: Limits
    at: float
    num_open: int = 0
    share: float = 1.0
    allotment: Allotment | None = None
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

    def is_short(self, num_tokens: float) -> bool:
        """Must routers that count together be asked before one more request of so many tokens?"""
        allotment, limits = self.allotment, self.limits
        if allotment is None:
            return True
        is_short_of_tokens = self.counts_tokens and allotment.tokens < num_tokens
        is_short_of_requests = limits.requests_per_minute is not None and allotment.requests < 1.0
        is_short_of_places = limits.concurrent_requests is not None and allotment.places <= self.num_open
        return is_short_of_tokens or is_short_of_requests or is_short_of_places

    @property
    def counts_tokens(self) -> bool:
        limits = self.limits
        return not limits.tokens_per_minute is limits.tokens_per_day is limits.tokens_per_month is None

    @property
    def has_idle_places(self) -> bool:
        """Places for open requests that another router may be short of."""
        allotment = self.allotment
        return (
            allotment is not None and self.limits.concurrent_requests is not None and allotment.places > self.num_open
        )

    @property
    def most_open(self) -> float:
        limit = self.limits.concurrent_requests
        if limit is not None and self.allotment is not None:
            return self.allotment.places
        return math.inf if limit is None else max(1.0, math.floor(limit * self.share))

    def enter(self, now: float, unix_s: float, *, is_busy: bool) -> None:
        """One request more; the caller owes a `leave`. Raises RateLimited or BudgetSpent; then nothing is counted."""
        if self.num_open >= self.most_open:
            raise RateLimited(f"{self.name} has {self.num_open} requests open, as many as it may", retry_after_s=1.0)
        self._check_budgets(unix_s)
        if self.allotment is not None:
            self._enter_together(self.allotment, is_busy=is_busy)
        elif self.requests is not None:
            self.requests.refill(now)
            self._check_rate(self.requests, 1.0, "requests", is_busy=is_busy)
            self.requests.take(min(1.0, max(0.0, self.requests.level)))
        self.num_open += 1

    def charge(self, num_tokens: float, now: float, unix_s: float, *, is_busy: bool) -> None:
        """The request's size is known. Raises RateLimited or BudgetSpent, and then nothing is charged."""
        self._check_budgets(unix_s)
        if self.allotment is not None:
            self._check_together(self.allotment, num_tokens, unix_s, is_busy=is_busy)
        elif self.tokens is not None:
            self.tokens.refill(now)
            self._check_rate(self.tokens, num_tokens, "tokens", is_busy=is_busy)
        self.take_tokens(num_tokens)

    def _enter_together(self, allotment: Allotment, *, is_busy: bool) -> None:
        limit = self.limits.requests_per_minute
        if limit is None:
            return
        if allotment.requests < 1.0 and (is_busy or self.limits.is_strict):
            raise self._rate_error(limit, "requests", 1.0 - allotment.request_level)
        allotment.requests = max(0.0, allotment.requests - 1.0)
        allotment.is_used = True

    def _check_together(self, allotment: Allotment, num_tokens: float, unix_s: float, *, is_busy: bool) -> None:
        limits, missing = self.limits, num_tokens - allotment.tokens
        if missing <= 0.0:
            return
        for left, name, chars in ((allotment.day_left, "day", DAY), (allotment.month_left, "month", MONTH)):
            if left < missing:
                raise self._budget_error(name, chars, unix_s)
        if limits.tokens_per_minute is not None and (is_busy or limits.is_strict):
            raise self._rate_error(limits.tokens_per_minute, "tokens", num_tokens - allotment.token_level)

    def _rate_error(self, per_minute: float, kind: str, missing: float) -> RateLimited:
        return RateLimited(
            f"{self.name} has had its {per_minute:.0f} {kind} a minute",
            retry_after_s=min(MAX_RETRY_AFTER_S, max(1.0, missing * MINUTE_S / per_minute)),
            headers=self.headers(self.at),
        )

    def take_tokens(self, num_tokens: float) -> None:
        """So many more, or less than none, than were charged; no question asked."""
        if self.allotment is not None:
            self.allotment.tokens -= num_tokens if self.counts_tokens else 0.0
            self.allotment.is_used = True
            if not self.limits.is_strict and self.limits.tokens_per_day is self.limits.tokens_per_month is None:
                self.allotment.tokens = max(0.0, self.allotment.tokens)
            return
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
                level, most = self._level(kind, rate, now), rate.per_minute
                missing = most * (1.0 if self.allotment is not None else rate.share) - level
                found += [
                    (f"x-ratelimit-limit-{kind}", f"{most:.0f}"),
                    (f"x-ratelimit-remaining-{kind}", str(max(0, math.floor(level)))),
                    (f"x-ratelimit-reset-{kind}", duration(max(0.0, missing * MINUTE_S / most))),
                ]
        return tuple(found)

    def _level(self, kind: str, rate: Rate, now: float) -> float:
        """What is left: here, or of all routers together when they were last asked."""
        allotment = self.allotment
        if allotment is None:
            return rate.refill(now)
        if kind == "requests":
            return allotment.requests + allotment.request_level
        return allotment.tokens + allotment.token_level

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

    def _budget_error(self, name: str, num_chars: int, unix_s: float) -> BudgetSpent:
        amount = self.limits.tokens_per_day if name == "day" else self.limits.tokens_per_month
        left = duration(seconds_left(unix_s, num_chars))
        return BudgetSpent(f"{self.name} has spent its {amount} tokens of this {name}; {left} to go")

    def _check_budgets(self, unix_s: float) -> None:
        if self.allotment is not None:
            return  # what is left is known when tokens are taken
        for budget, name in ((self.day, "day"), (self.month, "month")):
            if budget is not None and budget.turn(unix_s) <= 0.0:
                raise self._budget_error(name, budget.num_period_chars, unix_s)

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
