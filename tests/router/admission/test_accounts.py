"""Limits of one key or tenant: what is let through, what is refused, and what the headers say."""

from random import Random
from typing import Any

import pytest

from router.admission.accounts import Account
from router.admission.records import Limits
from router.errors import BudgetSpent, RateLimited

JAN_31 = 1769900400.0  # 2026-01-31T23:00:00Z


def account(**limits: Any) -> Account:
    return Account("key k", Limits(**limits), 0.0)


def test_a_strict_rate_lets_so_many_through_in_any_minute_and_refills_steadily() -> None:
    strict = account(requests_per_minute=60, is_strict=True)
    for _ in range(60):
        strict.enter(0.0, JAN_31, is_busy=False)
    with pytest.raises(RateLimited, match="its 60 requests a minute") as refused:
        strict.enter(0.5, JAN_31, is_busy=False)
    assert refused.value.retry_after_s == pytest.approx(0.5)
    strict.enter(1.0, JAN_31, is_busy=False)
    with pytest.raises(RateLimited):
        strict.enter(1.1, JAN_31, is_busy=False)


def test_what_nobody_else_has_a_use_for_may_be_had_beyond_the_rate() -> None:
    loose = account(requests_per_minute=2, tokens_per_minute=100)
    for _ in range(10):
        loose.enter(0.0, JAN_31, is_busy=False)
        loose.charge(90.0, 0.0, JAN_31, is_busy=False)
    with pytest.raises(RateLimited):
        loose.enter(0.0, JAN_31, is_busy=True)
    loose.enter(30.0, JAN_31, is_busy=True)
    loose.charge(50.0, 30.0, JAN_31, is_busy=True)
    with pytest.raises(RateLimited, match="tokens"):
        loose.charge(50.0, 30.0, JAN_31, is_busy=True)


def test_tokens_are_charged_when_known_and_settled_at_the_end() -> None:
    tokens = account(tokens_per_minute=1000, is_strict=True)
    tokens.charge(800.0, 0.0, JAN_31, is_busy=True)
    tokens.take_tokens(-700.0)
    tokens.charge(900.0, 0.0, JAN_31, is_busy=True)
    assert dict(tokens.headers(0.0)) == {
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "1m0s",
    }


def test_a_request_larger_than_a_minute_allows_is_told_that_waiting_is_of_no_use() -> None:
    with pytest.raises(RateLimited, match="takes 500 tokens, key k may have 100 a minute") as refused:
        account(tokens_per_minute=100).charge(500.0, 0.0, JAN_31, is_busy=True)
    assert refused.value.retry_after_s is None


def test_concurrency_holds_on_idle_replicas_as_well() -> None:
    bounded = account(concurrent_requests=2)
    bounded.enter(0.0, JAN_31, is_busy=False)
    bounded.enter(0.0, JAN_31, is_busy=False)
    with pytest.raises(RateLimited, match="2 requests open"):
        bounded.enter(0.0, JAN_31, is_busy=False)
    bounded.leave()
    bounded.enter(0.0, JAN_31, is_busy=False)


def test_a_budget_that_is_spent_says_not_to_retry_and_opens_again_with_the_day() -> None:
    budget = account(tokens_per_day=100, tokens_per_month=150)
    budget.charge(100.0, 0.0, JAN_31, is_busy=False)
    with pytest.raises(BudgetSpent, match="100 tokens of this day; 1h0m0s to go") as refused:
        budget.enter(0.0, JAN_31, is_busy=False)
    assert (refused.value.status, refused.value.headers) == (429, (("x-should-retry", "false"),))
    assert refused.value.code == "insufficient_quota"
    budget.enter(0.0, JAN_31 + 3600.0, is_busy=False)


def test_a_clock_that_jumps_back_neither_opens_a_budget_nor_takes_a_rate_away() -> None:
    both = account(tokens_per_day=100, requests_per_minute=10, is_strict=True)
    both.charge(100.0, 0.0, JAN_31 + 7200.0, is_busy=False)
    with pytest.raises(BudgetSpent):
        both.enter(0.0, JAN_31, is_busy=False)
    rate = account(requests_per_minute=10, is_strict=True)
    rate.enter(1000.0, JAN_31, is_busy=True)
    rate.enter(10.0, JAN_31, is_busy=True)
    assert rate.requests is not None
    assert rate.requests.level == 8.0


def test_other_limits_keep_what_was_used() -> None:
    changed = account(tokens_per_minute=100, tokens_per_day=1000)
    changed.charge(60.0, 0.0, JAN_31, is_busy=True)
    changed.change(Limits(tokens_per_minute=200, tokens_per_day=50), 0.0)
    assert changed.tokens is not None
    assert changed.tokens.level == 140.0
    with pytest.raises(BudgetSpent):
        changed.enter(0.0, JAN_31, is_busy=False)


def test_routers_that_count_apart_each_allow_their_part() -> None:
    divided = account(requests_per_minute=80, concurrent_requests=8, is_strict=True)
    divided.divide(4)
    allowed = 0
    for _ in range(100):
        try:
            divided.enter(0.0, JAN_31, is_busy=True)
            allowed += 1
            divided.leave()
        except RateLimited:
            break
    assert allowed == 20
    assert divided.most_open == 2


@pytest.mark.parametrize("seed", range(3))
def test_over_any_time_no_more_is_let_through_than_a_minute_at_once_and_the_rate_from_then_on(seed: int) -> None:
    random, strict, now, passed = Random(seed), account(requests_per_minute=120, is_strict=True), 0.0, 0
    waits_s: list[float] = []
    for _ in range(5000):
        now += random.expovariate(4.0)
        try:
            strict.enter(now, JAN_31, is_busy=random.random() < 0.5)
            strict.leave()
            passed += 1
        except RateLimited as error:
            waits_s.append(error.retry_after_s or 0.0)
        assert passed <= 120 + now * 2.0 + 1e-6
    assert passed > now * 1.9
    assert strict.num_open == 0
    assert min(waits_s) > 0.0
    assert max(waits_s) <= 60.0
