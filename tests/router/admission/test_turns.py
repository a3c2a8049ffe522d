"""Turns of several routers at one Redis, of both versions and on a cluster: who gets which place, and what becomes of
those of a router that dies, is fenced, or never hears an answer."""

from random import Random
from typing import Any

import pytest

from router.admission.bands import BandTerms
from router.admission.capacity import Room
from router.admission.ration import KEYS, TURN
from router.admission.turns import Mode
from router.core import Band, Standing
from router.store import names
from tests.router.admission.routers import LONG_LEASE_MS, Routers
from tests.router.store.servers import Server, server

pytestmark = pytest.mark.usefixtures("long_lease")


def test_places_that_nobody_waits_for_are_held_in_slices_and_never_more_than_there_are(client: Any) -> None:
    routers = Routers(client, capacity=8)
    routers.add(3)
    routers.all_turn()
    held = [turns.held for turns in routers.turns]
    assert all(turns.mode is Mode.FREE and turns.may_start for turns in routers.turns)
    assert sum(held) <= 8
    assert repr(routers.turns[0]) == f"<Turns FREE 0 used of {held[0]} held, 0 waiting>"


def test_whoever_waits_has_the_slices_of_all_revoked_and_gets_the_next_place(client: Any) -> None:
    routers = Routers(client, capacity=4)
    one, other = routers.add(2)
    routers.all_turn()
    one.used = one.held
    other.used = other.held
    while sum((one.held, other.held)) < 4:
        one.used = one.held
        routers.all_turn(1)
    one.used, other.used = one.held, other.held - 1
    routers.join(one, "waits")
    routers.turn(one)
    assert (one.mode, one.may_start, routers.granted) == (Mode.CONTENDED, False, [])
    routers.turn(other)
    assert other.mode is Mode.CONTENDED
    assert not other.may_start, "it has a free place and may not use it"
    routers.turn(other)
    routers.turn(one)
    assert routers.granted == ["waits"]


def test_the_common_order_is_by_band_flow_due_and_arrival_whoever_asks_first(client: Any) -> None:
    routers = Routers(client, capacity=1)
    one, other = routers.add(2)
    holder = routers.join(one, "holder")
    routers.turn(one)
    assert holder not in routers.waiting
    for turns, id, fields in (
        (one, "bulk", {"standing": Standing(band=Band.BULK), "arrived": 1.0}),
        (other, "late", {"arrived": 9.0}),
        (one, "early", {"arrived": 2.0}),
        (other, "hasty", {"arrived": 8.0, "deadline": 20.0}),
        (one, "high", {"standing": Standing(band=Band.HIGH), "arrived": 10.0}),
        (other, "twin2", {"arrived": 12.0}),
        (one, "twin1", {"arrived": 11.999999}),
    ):
        routers.join(turns, id, **fields)
    routers.all_turn(2)
    for _ in range(7):
        busy = one if one.used else other
        busy.used -= 1
        routers.all_turn(2)
    assert routers.granted == ["holder", "high", "hasty", "early", "late", "twin1", "twin2", "bulk"]


def test_equal_dues_are_served_in_the_order_in_which_they_came_not_at_random(client: Any) -> None:
    routers = Routers(client, capacity=1)
    (only,) = routers.add(1)
    routers.join(only, "holder")
    routers.turn(only)
    for number in range(100):
        routers.join(only, str(number), arrived=number * 1e-6, deadline=5.0)
    for _ in range(101):
        routers.turn(only)
        only.used = 0
    assert routers.granted[1:] == [str(number) for number in range(100)]


def test_tenants_take_turns_across_routers_however_many_requests_one_of_them_has(client: Any) -> None:
    routers = Routers(client, capacity=1)
    one, other = routers.add(2)
    routers.join(one, "holder", standing=Standing(tenant="x"))
    routers.turn(one)
    for number in range(50):
        routers.join(one, "flood", standing=Standing(tenant="flood"), arrived=float(number))
    for number in range(5):
        routers.join(other, "quiet", standing=Standing(tenant="quiet"), arrived=100.0 + number)
    for _ in range(30):
        routers.all_turn(1)
        for turns in routers.turns:
            turns.used = 0
    assert routers.granted[1:].index("quiet") <= 2
    assert routers.granted[1:11].count("quiet") == 5


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_shortage_that_has_just_begun_is_borne_by_all_tenants_in_the_order_of_arrival(
    client: Any, share: float
) -> None:
    routers = Routers(client, capacity=4)
    one, other = routers.add(2)
    for turns in routers.turns:
        turns.grace = lambda: share
    for _ in range(4):
        routers.join(one, "holder", standing=Standing(tenant="x"), arrived=0.5)
    routers.all_turn()
    for number in range(8):
        routers.join(one, "flood", standing=Standing(tenant="flood"), arrived=1.0 + number)
    for number in range(3):
        routers.join(other, "quiet", standing=Standing(tenant="quiet"), arrived=20.0 + number)
    routers.all_turn(1)
    for _ in range(11):
        busy = one if one.used else other
        busy.give(routers.running[busy].pop())
        routers.all_turn(2)
    early = ["flood", "flood", "flood", "quiet"] if share else ["flood", "quiet", "flood", "quiet"]
    assert routers.granted[:8] == ["holder"] * 4 + early
    assert sorted(routers.granted[4:]) == ["flood"] * 8 + ["quiet"] * 3


def test_a_settlement_moves_a_tenants_next_turn(client: Any) -> None:
    routers = Routers(client, capacity=1)
    (only,) = routers.add(1)
    for number in range(6):
        for tenant in ("a", "b"):
            routers.join(only, tenant, standing=Standing(tenant=tenant), arrived=float(number), tokens=100.0)
    routers.turn(only)
    assert routers.granted == ["a"]
    only.settle(Standing(tenant="a"), 250.0)  # it took 350 in all
    for _ in range(5):
        only.used = 0
        routers.turn(only)
    assert routers.granted == ["a", "b", "b", "b", "b", "a"]


def test_bulk_gets_its_least_share_of_a_pool_that_a_higher_band_fills(client: Any) -> None:
    routers = Routers(client, capacity=1, terms=BandTerms(min_shares=(0.0, 0.0, 0.0, 0.1), ageing_s=1e9))
    (only,) = routers.add(1)
    for number in range(150):
        for band in (Band.HIGH, Band.BULK):
            routers.join(only, band.name, standing=Standing(band=band), arrived=float(number))
    for _ in range(100):
        routers.turn(only)
        only.used = 0
    assert routers.granted.count("BULK") == pytest.approx(10, abs=2)


def test_who_left_is_gone_from_the_common_line_at_once(client: Any) -> None:
    routers = Routers(client, capacity=1)
    one, other = routers.add(2)
    routers.join(one, "holder")
    routers.turn(one)
    gone = routers.join(one, "gone", arrived=1.0)
    routers.join(other, "stays", arrived=2.0)
    routers.all_turn(1)
    del routers.waiting[gone]
    one.leave(gone)
    assert one.has_leaves
    one.used = 0
    routers.all_turn(2)
    assert routers.granted == ["holder", "stays"]
    assert (one.num_waiting, other.num_waiting) == (0, 0)


def test_work_of_a_router_that_dies_is_dropped_and_its_places_reclaimed_when_its_lease_ends(client: Any) -> None:
    routers = Routers(client, capacity=2)
    dead, alive = routers.add(2)
    routers.join(dead, "its work")
    routers.turn(dead)
    routers.join(dead, "in line", arrived=0.0)
    routers.turn(dead)
    for number in range(3):
        routers.join(alive, str(number), arrived=1.0 + number)
    routers.turn(alive)
    assert "2" not in routers.granted
    routers.age(dead, LONG_LEASE_MS + 1)
    routers.turn(alive)
    alive.used = 0
    routers.turn(alive)
    assert routers.granted[-3:] == ["0", "1", "2"]
    assert routers.row(dead) == ""
    routers.turn(dead)
    assert dead.mode is Mode.JOINING, "should it still live, it is told that it was given up"
    dead.used = 0
    routers.turn(dead)
    assert dead.mode is not Mode.JOINING


def test_an_answer_that_never_came_loses_no_waiter_and_no_place(client: Any) -> None:
    routers = Routers(client, capacity=1)
    (only,) = routers.add(1)
    routers.join(only, "granted, but nobody heard")
    routers.turn(only, is_lost=True)
    assert routers.granted == []
    routers.turn(only)
    routers.turn(only)
    assert routers.granted == ["granted, but nobody heard"]


def test_a_turn_of_an_older_epoch_that_comes_late_changes_nothing(client: Any) -> None:
    routers = Routers(client, capacity=1)
    (only,) = routers.add(1)
    routers.join(only, "twice?", arrived=1.0)
    prefix = names.pool(routers.model)
    late = [*(prefix + name for name in KEYS), prefix, *only.compose(0.0, Room(1))]
    only.lose()
    only.rejoin()
    routers.turn(only)
    assert client.eval(TURN.text, len(KEYS) + 1, *late)[0] == -1
    routers.turn(only)
    assert routers.granted == ["twice?"]
    routers.turn(only)
    assert routers.granted == ["twice?"]


def test_a_grant_for_another_router_waits_for_its_next_turn_and_counts_meanwhile(client: Any) -> None:
    routers = Routers(client, capacity=1)
    one, other = routers.add(2)
    routers.join(one, "holder")
    routers.turn(one)
    routers.join(other, "granted by the turn of another", arrived=1.0)
    routers.turn(other)
    one.used = 0
    routers.turn(one)
    routers.join(one, "next", arrived=2.0)
    routers.turn(one)
    assert routers.granted == ["holder"]
    routers.turn(other)
    assert routers.granted == ["holder", "granted by the turn of another"]
    assert not one.used


def test_what_is_put_off_asks_again_later_with_its_old_due(client: Any) -> None:
    routers = Routers(client, capacity=1)
    (only,) = routers.add(1)
    waiter = routers.join(only, "misfit")
    (found,) = only.apply(routers.ask(only), 0.0, 0.0)
    assert found is waiter
    only.put_off(waiter, now=0.0)
    routers.turn(only)
    assert routers.granted == [], "not before its pause is over"
    routers.turn(only, now=1.0)
    assert routers.granted == ["misfit"]


def test_once_nobody_waits_the_keys_of_the_line_are_gone(client: Any) -> None:
    routers = Routers(client, capacity=2)
    one, dead = routers.add(2)
    for number in range(20):
        routers.join(one, str(number), standing=Standing(tenant=f"t{number}", flow="f" if number % 2 else ""))
        routers.join(dead, str(number), standing=Standing(tenant=f"dead{number}"))
    routers.all_turn(2)
    routers.age(dead, LONG_LEASE_MS + 1)
    for _ in range(60):
        one.used = 0
        routers.turn(one)
    prefix = names.pool(routers.model)
    left = [key for name in (*KEYS, "grants:r0", "grants:r1") if client.exists(key := prefix + name)]
    assert left == [prefix + "pool", prefix + "routers", prefix + "counters"] or left == [
        prefix + "pool",
        prefix + "routers",
    ]
    assert all(client.exists(f"{prefix}queue:1:t{number}") == 0 for number in range(20))


@pytest.mark.parametrize("seed", range(3))
def test_random_routers_exceed_no_capacity_and_lose_nobody(client: Any, seed: int) -> None:
    tokens = 400
    random, routers = Random(seed), Routers(client, capacity=6, tokens=tokens)
    routers.add(4)
    for step in range(600):
        turns = random.choice(routers.turns)
        move = random.random()
        if move < 0.35:
            tenant, band = random.choice("abc"), random.choice(list(Band))
            price = random.choice((1.0, 50.0, 100.0))
            routers.join(turns, str(step), price, standing=Standing(tenant=tenant, band=band), arrived=float(step))
        elif move < 0.45 and routers.waiting:
            gone = random.choice(list(routers.waiting))
            routers.waiting.pop(gone).leave(gone)
            gone.has_left = True
        elif move < 0.6 and turns.used:
            turns.give(routers.running[turns].pop())
        elif move < 0.65 and turns.may_start and turns.mode is Mode.FREE:
            routers.start(turns, 50)
        elif move < 0.68:
            routers.turn(turns, is_lost=True)
        else:
            routers.turn(turns)
        assert routers.num_used <= 6
        assert sum(turns.used_tokens for turns in routers.turns) <= tokens + 4 * 100
        assert sum(turns.num_waiting for turns in routers.turns) == len(routers.waiting)
    for _ in range(400):
        for turns in routers.turns:
            routers.end_all(turns)
        routers.all_turn(1)
        if not routers.waiting:
            break
    assert not routers.waiting
    for turns in routers.turns:
        routers.end_all(turns)
    routers.all_turn(4)
    assert all(turns.mode is Mode.FREE for turns in routers.turns)
    assert all(routers.row(turns).split(",")[1] == str(turns.held) for turns in routers.turns)


def test_a_server_that_forgets_everything_is_joined_anew() -> None:
    with server("6.2") as running:
        _forget(running)


def _forget(running: Server) -> None:
    routers = Routers(running.client, capacity=1)
    (only,) = routers.add(1)
    routers.join(only, "holder")
    routers.turn(only)
    routers.join(only, "waits", arrived=1.0)
    routers.turn(only)
    running.client.flushall()
    routers.turn(only)
    assert only.mode is Mode.JOINING
    only.used = 0
    routers.turn(only)
    routers.turn(only)
    assert routers.granted == ["holder", "waits"]
