"""Routers that come back after Redis was lost: none takes what others, who are not back yet, may still use."""

from random import Random
from typing import Any

import pytest

from router.admission import turns as module
from router.admission.turns import Mode, Turns
from router.core import Standing
from router.store import names
from tests.router.admission.routers import LONG_LEASE_MS, Routers


@pytest.fixture(autouse=True)
def long_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEASE_MS", LONG_LEASE_MS)
    monkeypatch.setattr(module, "GATHER_MS", LONG_LEASE_MS)


def full_pool(client: Any, capacity: int = 30, **fields: Any) -> Routers:
    """Three routers, each of which uses a third of the places, and has more who wait."""
    routers = Routers(client, capacity=0, **fields)
    routers.add(3)
    for turns in routers.turns:
        for number in range(capacity):
            routers.join(turns, f"{turns.router} {number}", arrived=float(number), standing=Standing(turns.router))
    routers.all_turn()
    routers.capacity = capacity
    routers.all_turn(8)
    assert [turns.used for turns in routers.turns] == [capacity // 3] * 3
    return routers


def forget_all(routers: Routers) -> None:
    for key in routers.client.scan_iter(names.pool(routers.model) + "*"):
        routers.client.delete(key)
    for turns in routers.turns:
        turns.lose()


def come_back(routers: Routers, turns: Turns) -> None:
    turns.rejoin()
    for _ in range(3):
        routers.turn(turns)


def test_the_first_that_is_back_does_not_take_what_the_others_use(client: Any) -> None:
    routers = full_pool(client)
    forget_all(routers)
    for turns in routers.turns:
        come_back(routers, turns)
        assert routers.num_used <= 30
    routers.all_turn(3)
    assert routers.num_used == 30
    assert all(turns.mode is Mode.CONTENDED for turns in routers.turns)


def test_what_is_free_of_its_part_is_granted_before_all_are_back(client: Any) -> None:
    routers = full_pool(client)
    first = routers.turns[0]
    forget_all(routers)
    routers.end_all(first)
    others = routers.num_used
    come_back(routers, first)
    assert first.used == 10
    assert first.num_routers == 3, "were it lost again it would know its part"
    assert routers.num_used == others + 10


def test_tokens_are_kept_for_those_who_are_not_back_as_places_are(client: Any) -> None:
    routers = full_pool(client, 30, tokens=3000)
    forget_all(routers)
    for turns in routers.turns:
        come_back(routers, turns)
        assert sum(each.used_tokens for each in routers.turns) <= 3000


def test_who_does_not_come_back_is_waited_for_no_longer_than_the_time_of_a_gathering(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    routers = full_pool(client)
    first, *dead = routers.turns
    forget_all(routers)
    for turns in dead:
        routers.end_all(turns)
    come_back(routers, first)
    assert first.used <= 10
    # Nobody can wait for a server's clock: what it noted is made as old as that.
    client.hset(names.pool(routers.model) + "pool", "until", 1)
    for _ in range(3):
        routers.turn(first)
    assert first.used == 30


def test_rows_from_before_the_loss_count_as_their_routers_part_at_least(client: Any) -> None:
    """A restarted Redis knows what was, not what routers did alone meanwhile."""
    routers = Routers(client, capacity=30)
    one, other = routers.add(2)
    routers.all_turn()
    for turns in (one, other):
        turns.lose()
    for turns in (one, other):
        while turns.may_start:
            routers.start(turns, 100)
    assert (one.used, other.used) == (15, 15)
    for number in range(20):
        routers.join(one, str(number))
    come_back(routers, one)
    assert (one.used, other.used) == (15, 15), "its row says that it holds less"
    come_back(routers, other)
    assert routers.num_used == 30


@pytest.mark.parametrize("seed", range(3))
def test_losses_in_between_never_lead_to_more_than_there_is(client: Any, seed: int) -> None:
    random, routers = Random(seed), full_pool(client, 12)
    for step in range(60):
        if step % 20 == 0:
            forget_all(routers)
            away = list(routers.turns)
        turns = random.choice(routers.turns)
        if turns in away:
            away.remove(turns)
            come_back(routers, turns)
        elif random.random() < 0.5 and turns.used:
            turns.give(routers.running[turns].pop())
        else:
            routers.join(turns, str(step), arrived=float(step))
            routers.turn(turns)
        assert routers.num_used <= 12
