"""Limits of keys over several routers that share Redis, and over as many that have lost it."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from router.admission.accounts import Account
from router.admission.allotments import Allotments
from router.admission.callers import Callers
from router.admission.gate import Gate
from router.admission.passes import Pass
from router.admission.records import Book, create_key
from router.core import Request, Usage
from router.errors import BudgetSpent, PointsmanError, RateLimited
from router.store.connection import Store
from tests.router.nouns import make_request
from tests.router.store.servers import Server, server


@pytest.fixture(params=["6.2", "8.2"])
def redis(request: pytest.FixtureRequest) -> Iterator[Server]:
    with server(request.param) as running:
        yield running


class Routers:
    """Gates of several routers over one book with one key."""

    def __init__(self, stores: list[Store], **limits: Any) -> None:
        book, key, token = create_key(Book(), {"name": "k", "limits": limits}, 0.0)
        self.key = key
        self.gates, self.allotments = [], []
        for number, store in enumerate(stores):
            callers = Callers()
            callers.replace(book, time.monotonic())
            self.allotments.append(Allotments(store, f"r{number}", callers, time.monotonic, lambda: len(stores)))
            self.gates.append(Gate(1000, callers=callers))
        self.request: Request = make_request(headers=(("x-api-key", token),), max_tokens=10)

    async def enter(self, number: int, num_tokens: int = 0) -> Pass:
        """Through the gate of one router. What is refused has left it again."""
        gate = self.gates[number % len(self.gates)]
        passed = gate.enter(self.request)
        try:
            await passed.enter()
            if num_tokens:
                await passed.charge(self.request, num_tokens - 10)
        except PointsmanError:
            gate.leave(passed)
            raise
        return passed

    def leave(self, number: int, passed: Pass, num_tokens: int | None = None) -> None:
        usage = None if num_tokens is None else Usage(num_tokens, None, 0, 0.1)
        self.gates[number % len(self.gates)].leave(passed, usage)

    async def num_let_in(self, wanted: int, num_tokens: int = 0) -> int:
        """How many of so many get in, one after the other at each router in turn; none of them leaves."""
        count = 0
        for number in range(wanted):
            with contextlib.suppress(RateLimited, BudgetSpent):
                await self.enter(number, num_tokens)
                count += 1
        return count

    def account(self, number: int) -> Account:
        (account,) = self.gates[number].callers.accounts.values()
        return account


@contextlib.asynccontextmanager
async def routers(url: str, number: int = 4, **limits: Any) -> AsyncIterator[Routers]:
    async with contextlib.AsyncExitStack() as stack:
        stores = [Store(url, timeout_s=20.0, random=lambda: 0.0) for _ in range(number)]
        for store in stores:
            await stack.enter_async_context(store.opened())
            await store.wait_up(5.0)
        made = Routers(stores, **limits)
        for allotments in made.allotments:
            await stack.enter_async_context(allotments.opened())
        yield made


async def test_a_rate_is_the_same_however_many_routers_it_is_spent_at(redis: Server) -> None:
    async with routers(redis.url, requests_per_minute=20, is_strict=True) as four:
        began = time.monotonic()
        num_let_in = await four.num_let_in(100)
        assert 20 <= num_let_in <= 21 + 20 * (time.monotonic() - began) / 60
        with pytest.raises(RateLimited) as refused:
            await four.enter(0)
        assert 1.0 <= (refused.value.retry_after_s or 0.0) <= 60.0
        assert dict(refused.value.headers)["x-ratelimit-limit-requests"] == "20"
        assert dict(refused.value.headers)["x-ratelimit-remaining-requests"] == "0"


async def test_at_once_at_all_routers_no_more_get_in_than_one_after_the_other(redis: Server) -> None:
    async with routers(redis.url, requests_per_minute=30, is_strict=True) as four:
        began = time.monotonic()
        ends = await asyncio.gather(*(four.enter(n) for n in range(200)), return_exceptions=True)
        num_let_in = sum(isinstance(end, Pass) for end in ends)
        assert 30 <= num_let_in <= 31 + 30 * (time.monotonic() - began) / 60


async def test_concurrency_is_counted_over_all_routers_and_comes_back(redis: Server) -> None:
    async with routers(redis.url, concurrent_requests=5) as four:
        passes = [await four.enter(n) for n in range(5)]
        for number in range(4):
            with pytest.raises(RateLimited, match="open"):
                await four.enter(number)
        for number, passed in enumerate(passes):
            four.leave(number, passed)
        num_let_in = 0
        async with asyncio.timeout(30.0):
            while num_let_in < 5:
                num_let_in += await four.num_let_in(20)
                await asyncio.sleep(0.01)
        assert num_let_in == 5
        assert await four.num_let_in(20) == 0


async def test_a_budget_is_one_over_all_routers_and_what_was_not_used_is_given_back(redis: Server) -> None:
    async with routers(redis.url, tokens_per_day=1000) as four:
        assert await four.num_let_in(20, num_tokens=100) == 10
        with pytest.raises(BudgetSpent):
            await four.enter(0, num_tokens=100)
    async with routers(redis.url, number=1, tokens_per_day=1000) as other:
        for number in range(8):
            passed = await other.enter(0, num_tokens=100)
            other.leave(number, passed, num_tokens=50)
        assert await other.num_let_in(20, num_tokens=100) == 6


async def test_answers_longer_than_expected_count_in_full(redis: Server) -> None:
    async with routers(redis.url, number=2, tokens_per_day=1000) as two:
        passed = await two.enter(0, num_tokens=100)
        two.leave(0, passed, num_tokens=950)
        with pytest.raises(BudgetSpent):
            await two.enter(0, num_tokens=100)
        with pytest.raises(BudgetSpent):
            await two.enter(1, num_tokens=100)


async def test_without_redis_each_router_goes_by_its_part_of_the_limits(redis: Server) -> None:
    async with routers(redis.url, requests_per_minute=40, is_strict=True) as four:
        redis.stop()
        began = time.monotonic()
        num_let_in = await four.num_let_in(400)
        assert 40 <= num_let_in <= 44 + 40 * (time.monotonic() - began) / 60
        redis.start()


async def test_what_a_router_had_and_did_not_use_goes_back_when_it_stops(redis: Server) -> None:
    limits = {"requests_per_minute": 2400, "is_strict": True}
    async with routers(redis.url, number=1, **limits) as one:
        name = f"pm:{{account/key%20{one.key.id}}}"
        await one.enter(0)
        taken = float(redis.client.hget(name, "rl") or 0)
        assert taken <= 2391
    assert float(redis.client.hget(name, "rl") or 0) >= 2399


async def test_a_router_that_died_holds_no_places_for_long(redis: Server) -> None:
    async with routers(redis.url, number=2, concurrent_requests=3) as two:
        redis.client.hset(f"pm:{{account/key%20{two.key.id}}}", "o:dead", "3,1")
        assert await two.num_let_in(10) == 3
