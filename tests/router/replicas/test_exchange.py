"""Lessons between hosts, through a real Redis: what one has learned another begins with; what lies there and is no
lesson, or is of another machine, is not believed; a store that is away harms nobody."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import msgspec
import pytest

from router.core import Replica
from router.replicas.exchange import Exchange, is_of_this_host
from router.replicas.lessons import Lesson, Lessons
from router.replicas.member import Member
from router.replicas.speeds import Source
from router.spec import ReplicaSpec
from router.store import names
from router.store.connection import Store
from tests.router.replicas.fakes import make_member
from tests.router.replicas.test_lessons import FAST, SLOW, make_lesson, see
from tests.router.store.servers import Server, server

UNIX_S = 1.7e9


@pytest.fixture(scope="module")
def redis() -> Iterator[Server]:
    with server("6.2") as running:
        yield running


@pytest.fixture(autouse=True)
def empty(redis: Server) -> None:
    redis.command("FLUSHALL")


@dataclass
class Host:
    """Its clock began some time ago, of which no other host knows; `now` is in seconds of all of them."""

    members: list[Member]
    exchange: Exchange
    lessons: Lessons
    began: float
    now: float = 0.0

    async def round(self) -> None:
        self.exchange.tell(self.lessons.due(self.now + self.began))
        await self.exchange.round()


@contextlib.asynccontextmanager
async def host(url: str, *members: Member, began: float = 0.0, name: str = "here") -> AsyncIterator[Host]:
    lessons = Lessons(lambda: members)
    store = Store(url, timeout_s=20.0, random=lambda: 0.0)
    exchange = Exchange(store, lessons, host=name)
    running = Host([*members], exchange, lessons, began)
    exchange.clock = lambda: running.now + running.began
    exchange.unix = lambda: UNIX_S + running.now
    async with store.opened():
        with contextlib.suppress(Exception):
            await store.wait_up(20.0)
        yield running


def local_member() -> Member:
    member = make_member()
    member.replica = Replica(ReplicaSpec("http://127.0.0.1:8000"), models=("m",))
    return member


async def test_a_router_on_another_host_begins_with_what_this_one_has_learned(redis: Server) -> None:
    teller, taker = make_member(), make_member()
    see(teller, SLOW, 40)
    async with host(redis.url, teller, began=5000.0) as one, host(redis.url, taker, began=77.0) as other:
        await one.round()
        await other.round()
        assert taker.replica.step == teller.replica.step
        assert taker.speeds.source is Source.SIBLING
        assert other.lessons.num_taken == 1
    (key,) = redis.client.keys("*lessons*")
    assert 80_000 < redis.client.ttl(key) <= 86_400, "who is seen no more is forgotten"


async def test_of_two_the_one_who_saw_more_is_kept_and_only_what_is_wanted_is_read(redis: Server) -> None:
    much, little = make_member(), make_member()
    see(much, SLOW, 150)
    see(little, FAST, 40)
    async with host(redis.url, much) as one, host(redis.url, little) as other:
        await one.round()
        await other.round()
        assert little.speeds.source is Source.OWN
        assert stored(redis).num_samples == much.speeds.num_own
        see(little, FAST, 400, start=1e6)
        other.now += 60.0
        await other.round()
        assert stored(redis).num_samples == little.speeds.num_own


def stored(redis: Server) -> Lesson:
    return msgspec.msgpack.decode(redis.command("GET", names.lesson("m", "a")), type=Lesson)


async def test_the_same_loopback_address_elsewhere_is_another_machine(redis: Server) -> None:
    teller, taker, neighbour = local_member(), local_member(), local_member()
    see(teller, SLOW, 40)
    async with (
        host(redis.url, teller, name="one") as one,
        host(redis.url, taker, name="two") as two,
        host(redis.url, neighbour, name="one") as after,
    ):
        for each in (one, two, after):
            await each.round()
    assert taker.speeds.source is Source.PRIOR
    assert neighbour.speeds.source is Source.SIBLING


@pytest.mark.parametrize(
    ("url", "is_it"),
    [
        ("http://127.0.0.1:1", True),
        ("http://127.8.0.1", True),
        ("http://[::1]:1", True),
        ("http://localhost:1", True),
        ("http://a.localhost", True),
        ("grpc://10.0.0.1:5", False),
        ("http://localhost.example", False),
    ],
)
def test_which_addresses_mean_this_host(url: str, is_it: bool) -> None:
    assert is_of_this_host(url) is is_it


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"\xff\xff",
        msgspec.msgpack.encode({"replica_id": "a"}),
        msgspec.msgpack.encode(make_lesson(at=UNIX_S, since=0.0, model="other")),
        msgspec.msgpack.encode(make_lesson(at=UNIX_S, since=0.0, step=[float("nan")] * 5)),
        msgspec.msgpack.encode(make_lesson(at=5.0, since=0.0)),
    ],
)
async def test_what_lies_in_the_store_and_is_no_lesson_is_refused_and_then_replaced(
    redis: Server, wrong: bytes
) -> None:
    redis.client.set(names.lesson("m", "a"), wrong)
    member = make_member()
    async with host(redis.url, member) as running:
        await running.round()
        assert member.speeds.source is Source.PRIOR
        assert running.lessons.num_refused == 1
        see(member, FAST, 40)
        await running.round()
    assert stored(redis).num_samples == member.speeds.num_own


async def test_what_was_learned_before_the_replica_was_lost_is_not_taken(redis: Server) -> None:
    teller, taker = make_member(), make_member()
    see(teller, SLOW, 40)
    async with host(redis.url, teller, began=9.0) as one, host(redis.url, taker, began=1000.0) as other:
        await one.round()
        other.now = one.now = 500.0
        taker.lose(other.now + other.began)
        await other.round()
        assert other.lessons.num_taken == 0
        teller.lose(one.now + one.began)
        see(teller, FAST, 40, start=1e6)
        one.now += 100.0
        other.now += 100.0
        await one.round()
        await other.round()
        assert taker.speeds.source is Source.SIBLING
        assert taker.replica.step == teller.replica.step


async def test_a_store_that_is_away_or_goes_harms_nobody_and_nothing_is_lost(redis: Server) -> None:
    with server("6.2") as dying:
        member = make_member()
        see(member, SLOW, 40)
        async with host(dying.url, member) as running:
            dying.stop()
            await running.round()
            await running.round()
            assert not running.exchange.store.is_up
            dying.start()
            await running.exchange.store.probe_now()
            running.exchange.store._gain()
            await running.round()
            assert dying.client.keys("*lessons*")
