"""Turns of several routers: prices in tokens, grants on their way to their router, and clocks that differ or jump."""

from typing import Any

import pytest

from router.admission import turns as module
from router.admission.bands import BandTerms
from router.admission.capacity import Room
from router.admission.turns import Turns
from router.core import Standing
from router.store import names
from tests.router.admission.routers import LONG_LEASE_MS, Routers

pytestmark = pytest.mark.usefixtures("long_lease")


def test_a_place_has_a_price_in_tokens_and_no_more_are_given_than_there_are(client: Any) -> None:
    routers = Routers(client, capacity=100, tokens=250)
    one, other = routers.add(2)
    for number, turns in enumerate((one, one, other, other)):
        routers.join(turns, str(number), arrived=number * 1e-3, tokens=100.0)
    routers.all_turn(3)
    assert routers.granted == ["0", "1"]
    one.give(100)
    routers.all_turn(2)
    assert routers.granted == ["0", "1", "2"]


def test_a_request_of_more_tokens_than_there_are_waits_until_it_can_run_alone_and_nobody_passes_it(client: Any) -> None:
    routers = Routers(client, capacity=100, tokens=250)
    one, other = routers.add(2)
    routers.join(one, "holder", tokens=10.0)
    routers.turn(one)
    routers.join(other, "giant", arrived=1.0, tokens=1000.0)
    routers.turn(other)
    routers.join(one, "small", arrived=2.0, tokens=10.0)
    routers.all_turn(3)
    assert routers.granted == ["holder"]
    one.give(10)
    routers.all_turn(3)
    assert routers.granted == ["holder", "giant"]
    other.give(1000)
    routers.all_turn(3)
    assert routers.granted == ["holder", "giant", "small"]


def test_a_slice_leases_tokens_with_its_places_and_one_request_may_overdraw_it(client: Any) -> None:
    routers = Routers(client, capacity=100, tokens=1000)
    one, other = routers.add(2)
    for _ in range(10):
        for turns in (one, other):
            if turns.may_start:
                turns.take(30)
        routers.all_turn(1)
    assert one.held_tokens + other.held_tokens <= 1000
    assert one.held > one.used
    while one.may_start:
        one.take(90)
    assert one.used < one.held
    assert 0 <= one.used_tokens - one.held_tokens < 90
    assert one.is_short, "more are asked for"


def test_nobody_of_a_flow_starts_before_an_earlier_one_whose_grant_is_on_its_way(client: Any) -> None:
    routers = Routers(client, capacity=2)
    one, other = routers.add(2)
    for turns in (one, other):
        routers.join(turns, "holder")
        routers.turn(turns)
    routers.all_turn(2)
    routers.join(other, "first", arrived=1.0)
    routers.turn(other)
    routers.join(one, "later", arrived=1.2)
    routers.turn(one)
    one.used = other.used = 0
    routers.turn(other)
    for _ in range(3):
        routers.turn(one)
        assert routers.granted[2:] == ["first"], "the other has it, but has not said that it was placed"
    routers.turn(other)
    routers.turn(one)
    assert routers.granted[2:] == ["first", "later"]


@pytest.mark.parametrize(
    ("later", "is_claimed"),
    [
        pytest.param({"arrived": 1.04}, True, id="within the tolerance"),
        pytest.param({"arrived": 1.2, "standing": Standing(tenant="the other")}, True, id="of another flow"),
        pytest.param({"arrived": 1.2}, False, id="when the time to claim is over"),
    ],
)
def test_a_grant_on_its_way_holds_up_no_others(
    client: Any, later: dict[str, Any], is_claimed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLAIM_MS", LONG_LEASE_MS if is_claimed else 0)
    routers = Routers(client, capacity=2)
    one, other = routers.add(2)
    for turns in (one, other):
        routers.join(turns, "holder", standing=Standing(tenant="holders"))
        routers.turn(turns)
    routers.all_turn(2)
    routers.join(other, "first", arrived=1.0)
    routers.turn(other)
    routers.join(one, "later", **later)
    routers.turn(one)
    one.used = other.used = 0
    routers.turn(other)
    assert routers.granted[2:] == ["first"]
    routers.turn(one)
    assert routers.granted[2:] == ["first", "later"]


def test_what_a_router_that_left_had_claimed_holds_up_nobody(client: Any) -> None:
    routers = Routers(client, capacity=3)
    one, other, gone = routers.add(3)
    for turns in (one, other, gone):
        routers.join(turns, turns.router)
        routers.turn(turns)
    prefix = names.pool(routers.model)
    assert client.hexists(prefix + "claims", gone.router)
    client.hdel(prefix + "routers", gone.router)
    routers.turn(one)
    assert not client.hexists(prefix + "claims", gone.router)


def test_routers_whose_clocks_differ_by_hours_keep_one_order(client: Any) -> None:
    routers = Routers(client, capacity=1)
    one, other = routers.add(2)
    routers.join(one, "holder")
    routers.turn(one)
    ahead_s = 7200.0
    other.apply(routers.ask(other, ahead_s), ahead_s, ahead_s)
    routers.join(other, "first", arrived=ahead_s + 1.0, deadline=ahead_s + 60.0)
    routers.join(one, "second", arrived=2.0, deadline=60.0)
    routers.join(other, "third", arrived=ahead_s + 3.0, deadline=ahead_s + 60.0)
    for _ in range(8):
        for waiter in other.apply(routers.ask(other, ahead_s), ahead_s, ahead_s):
            other.leave(waiter)
            del routers.waiting[waiter]
            routers.granted.append(waiter.demand.request.id)
        routers.turn(one)
        one.used = other.used = 0
    assert routers.granted == ["holder", "first", "second", "third"]


def test_of_all_answers_that_which_took_least_tells_the_clock_until_it_is_set() -> None:
    turns = Turns("r", BandTerms())

    def see(unix_ms: int, asked_at: float, now: float) -> float:
        turns.apply([1, 0, 0, 0, 1, 1, 0, unix_ms, 0], asked_at, now)
        assert turns._sight is not None
        return turns._sight.offset_s

    assert see(1_000_000, 0.0, 0.2) == pytest.approx(999.9)
    assert see(1_001_000, 1.0, 1.01) == pytest.approx(1000.0, abs=0.01)
    quick = see(1_002_000, 2.0, 2.001)
    assert see(1_003_070, 3.0, 3.1) == quick
    assert see(9_004_000, 4.0, 4.1) == pytest.approx(9000.0, abs=0.1), "it was set"


def test_a_clock_of_redis_that_is_set_back_keeps_no_dead_router_alive(client: Any) -> None:
    routers = Routers(client)
    dead, alive = routers.add(2)
    routers.age(dead, -3_600_000)
    now_s = client.time()[0]
    routers.turn(alive)
    assert int(routers.row(dead).split(",")[2]) <= (now_s + 60) * 1000


def test_alone_a_router_goes_by_its_part_of_what_there_was() -> None:
    turns = Turns("r", BandTerms(), num_routers=3, room=Room(7, 90))
    started = 0
    while turns.may_start:
        turns.take(20)
        started += 1
    assert started == 2, "two of them are over a third of the tokens"
    small = Turns("r", BandTerms(), num_routers=3, room=Room(7, 90))
    for expected in (True, True, True, False):
        assert small.may_start is expected
        small.take(1)
