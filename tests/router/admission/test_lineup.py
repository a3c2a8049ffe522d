"""Lineups of several routers over a real Redis: windows much smaller than the line, and yet one order of all."""

from random import Random
from typing import Any

import pytest

from router.admission import lineup as module
from router.admission.turns import Turns
from router.core import Standing
from router.store import names
from tests.router.admission.routers import LONG_LEASE_MS, Routers

pytestmark = pytest.mark.usefixtures("long_lease", "small_windows")


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_LINED", 0)
    monkeypatch.setattr(module, "LEAST_LINED", 4)


def num_in_redis(routers: Routers) -> int:
    return sum(routers.client.zcard(key) for key in routers.client.scan_iter(names.pool(routers.model) + "queue:*"))


def serve_all(routers: Routers, times: int) -> None:
    for _ in range(times):
        for turns in routers.turns:
            routers.end_all(turns)
        routers.all_turn(1)


def test_a_window_and_a_mark_stand_for_however_many_wait(client: Any) -> None:
    routers = Routers(client, capacity=1)
    (only,) = routers.add(1)
    routers.join(only, "holder", deadline=1.0)
    routers.turn(only)
    for number in range(200):
        routers.join(only, str(number), arrived=1.0 + number)
        routers.turn(only)
    assert only.num_waiting == 200
    assert num_in_redis(routers) == 5
    assert repr(only._lineup) == "<Lineup 4 lined of 200 in 1 windows>"
    serve_all(routers, 220)
    assert routers.granted == ["holder", *map(str, range(200))]
    assert num_in_redis(routers) == 0


@pytest.mark.parametrize("capacity", [1, 7])
def test_the_order_of_all_routers_is_that_of_arrival_though_most_of_them_stand_behind(
    client: Any, capacity: int
) -> None:
    routers = Routers(client, capacity=capacity)
    one, other = routers.add(2)
    for number in range(capacity):
        routers.join(one, f"holder{number}", arrived=-1.0, deadline=20.0)
    routers.turn(one)
    for number in range(30):
        routers.join(one, str(number), arrived=float(number), deadline=20.0)
    routers.turn(one)
    for number in range(30, 40):
        routers.join(other, str(number), arrived=float(number), deadline=20.0)
    routers.turn(other)
    serve_all(routers, 100)
    assert [int(id) for id in routers.granted if id.isdigit()] == list(range(40))


def test_who_is_due_after_a_mark_is_not_placed_before_those_behind_it_have_been_said(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.admission.turns.CLAIM_MS", LONG_LEASE_MS)
    routers = Routers(client, capacity=0)
    one, other = routers.add(2)
    for number in range(5):
        routers.join(one, str(number), arrived=10.0, deadline=20.0 + number)
    routers.join(other, "due later, though it came first", arrived=0.0, deadline=28.0)
    routers.all_turn(1)
    routers.capacity = 4
    routers.turn(one)
    assert routers.granted == ["0", "1", "2", "3"]
    routers.capacity = 6
    for _ in range(3):
        routers.turn(other)
    assert routers.granted == ["0", "1", "2", "3"], "somebody stands behind the mark, and before it"
    routers.all_turn(2)
    assert routers.granted[4:] == ["4", "due later, though it came first"]


def test_a_router_that_stands_still_holds_nobody_back_by_its_mark_for_longer_than_a_claim(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    routers = Routers(client, capacity=0)
    still, alive = routers.add(2)
    for number in range(9):
        routers.join(still, str(number), arrived=float(number), deadline=20.0)
    routers.join(alive, "comes after all of them", arrived=100.0, deadline=21.0)
    routers.all_turn(1)
    routers.capacity = 4
    routers.turn(still)
    routers.capacity = 6
    monkeypatch.setattr("router.admission.turns.CLAIM_MS", LONG_LEASE_MS)
    for _ in range(3):
        routers.turn(alive)
    assert routers.granted == ["0", "1", "2", "3"]
    monkeypatch.setattr("router.admission.turns.CLAIM_MS", 0)
    for _ in range(3):
        routers.turn(alive)
    assert routers.granted[4:] == ["comes after all of them"]


def test_when_redis_forgets_all_only_the_windows_are_said_anew_and_nobody_is_lost(client: Any) -> None:
    routers = Routers(client, capacity=1)
    (only,) = routers.add(1)
    routers.join(only, "holder", deadline=1.0)
    routers.turn(only)
    for number in range(50):
        routers.join(only, str(number), arrived=1.0 + number)
    routers.turn(only)
    for key in client.scan_iter(names.pool(routers.model) + "*"):
        client.delete(key)
    serve_all(routers, 70)
    assert routers.granted == ["holder", *map(str, range(50))]


def test_misfits_that_fill_a_window_keep_nobody_behind_from_being_tried(client: Any) -> None:
    routers = Routers(client, capacity=1)
    (only,) = routers.add(1)
    misfits = [routers.join(only, f"misfit{number}", arrived=float(number)) for number in range(20)]
    routers.join(only, "fits", arrived=100.0)
    for step in range(60):
        for waiter in only.apply(routers.ask(only, step * 0.001), 0.0, 0.0):
            if waiter in misfits:
                only.put_off(waiter, 1000.0)
            else:
                assert waiter.demand.request.id == "fits"
                return
    pytest.fail("it was never tried")


def test_a_mark_whose_waiters_have_left_is_taken_away(client: Any) -> None:
    routers = Routers(client, capacity=1)
    (only,) = routers.add(1)
    routers.join(only, "holder", deadline=1.0)
    routers.turn(only)
    waiters = [routers.join(only, str(number), arrived=1.0 + number) for number in range(10)]
    routers.turn(only)
    for waiter in waiters:
        only.leave(waiter)
        waiter.has_left = True
        del routers.waiting[waiter]
    routers.turn(only)
    assert num_in_redis(routers) == 0
    assert not only._lineup._windows
    routers.end_all(only)
    routers.all_turn(2)
    assert only.may_start


@pytest.mark.parametrize("seed", range(4))
def test_random_routers_with_small_windows_lose_nobody_and_keep_each_flows_order(client: Any, seed: int) -> None:
    random, routers = Random(seed), Routers(client, capacity=5)
    routers.add(3)
    order: dict[str, float] = {}
    for step in range(500):
        turns, move = random.choice(routers.turns), random.random()
        if move < 0.5:
            arrived = step * 1.0
            routers.join(turns, str(step), arrived=arrived, standing=Standing(tenant=random.choice("ab")))
            order[str(step)] = arrived
        elif move < 0.58 and routers.waiting:
            gone = random.choice(list(routers.waiting))
            routers.waiting.pop(gone).leave(gone)
            gone.has_left = True
        elif move < 0.7 and turns.used:
            turns.give(routers.running[turns].pop())
        elif move < 0.72:
            routers.turn(turns, is_lost=True)
        else:
            routers.turn(turns)
        assert routers.num_used <= 5
        assert sum(each.num_waiting for each in routers.turns) == len(routers.waiting)
        assert num_in_redis(routers) <= 3 * 2 * 2 * (4 + 1) * 3, "what lost epochs left goes when its turn comes"
    serve_all(routers, 300)
    assert not routers.waiting
    assert all(_is_free(turns) for turns in routers.turns)


def _is_free(turns: Turns) -> bool:
    return turns.num_waiting == 0 and not turns._lineup.has_pushed
