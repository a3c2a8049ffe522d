"""Who leaves the line, and what may happen in the same tick; then all of it at random."""

import asyncio
from random import Random

import pytest

from router.core import Lease, Outcome, Pool
from router.errors import Expired, Overloaded
from tests.router.admission.fakes import House
from tests.router.admission.virtual_time import in_virtual_time, settle


@in_virtual_time
async def test_cancel_while_queued_frees_the_place() -> None:
    house = House()
    lease = await house.full()
    gone, stays = house.start("gone"), house.start("stays")
    await settle()
    gone.cancel()
    await settle()
    assert house.queue.num_waiting == 1
    lease.release(Outcome.OK)
    await stays
    assert house.placer.placed == ["first", "stays"]


@in_virtual_time
async def test_cancel_then_release_in_one_tick_places_the_next() -> None:
    house = House()
    lease = await house.full()
    gone, stays = house.start("gone"), house.start("stays")
    await settle()
    gone.cancel()
    lease.release(Outcome.OK)
    assert house.placer.placed == ["first", "stays"], "nothing is placed for who was cancelled"
    assert (await stays).outcome is None
    with pytest.raises(asyncio.CancelledError):
        await gone


@in_virtual_time
async def test_release_then_cancel_in_one_tick_gives_the_lease_to_the_next() -> None:
    house = House()
    lease = await house.full()
    gone, stays = house.start("gone"), house.start("stays")
    await settle()
    lease.release(Outcome.OK)
    lost = house.placer.open_leases[0]
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert (lost.demand.request.id, lost.outcome) == ("gone", Outcome.CLIENT_GONE)
    assert (await stays).outcome is None
    assert house.placer.num_open("m", "a") == 1


@in_virtual_time
async def test_a_lease_given_back_is_placed_even_where_a_release_does_not_pump() -> None:
    house = House()
    house.placer.on_release = lambda: None
    lease = await house.full()
    gone, stays = house.start("gone"), house.start("stays")
    await settle()
    lease.release(Outcome.OK)
    house.queue.pump()
    gone.cancel()
    await stays
    assert house.placer.placed == ["first", "gone", "stays"]


@in_virtual_time
async def test_release_then_cancel_with_nobody_behind_leaves_no_lease() -> None:
    house = House()
    lease = await house.full()
    gone = house.start("gone")
    await settle()
    lease.release(Outcome.OK)
    gone.cancel()
    await settle()
    assert house.placer.open_leases == []


@in_virtual_time
async def test_expiry_then_cancel_in_one_tick_is_a_cancel() -> None:
    house = House(max_wait_s=5.0)
    await house.full()
    gone = house.start("gone")
    await settle()
    asyncio.get_running_loop().call_later(5.0, gone.cancel)
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert house.queue.num_waiting == 0


@in_virtual_time
@pytest.mark.parametrize("is_release_first", [True, False])
async def test_release_and_expiry_in_one_tick_lose_no_lease(is_release_first: bool) -> None:
    house = House(max_wait_s=5.0)
    lease = await house.full()
    loop = asyncio.get_running_loop()
    if is_release_first:
        loop.call_later(5.0, lease.release, Outcome.OK)
    waiter = house.start("waiter")
    await settle()
    if not is_release_first:
        loop.call_later(5.0, lease.release, Outcome.OK)
    if is_release_first:
        assert (await waiter).outcome is None
    else:
        with pytest.raises(Expired):
            await waiter
        await asyncio.sleep(1.0)
    assert house.placer.num_open("m", "a") == is_release_first


@in_virtual_time
async def test_a_timeout_around_place_gives_up_at_once() -> None:
    house = House()
    lease = await house.full()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2.0):
            await house.queue.place(house.demand("hasty"))
    assert house.queue.num_waiting == 0
    lease.release(Outcome.OK)
    assert house.placer.open_leases == []


@in_virtual_time
async def test_a_place_that_is_closed_leaves_the_line() -> None:
    house = House()
    await house.full()
    place = house.queue.place(house.demand("r"))
    place.send(None)
    assert house.queue.num_waiting == 1
    place.close()
    assert house.queue.num_waiting == 0


@pytest.mark.parametrize("seed", range(6))
def test_random_storms_lose_no_lease_and_no_waiter(seed: int) -> None:
    @in_virtual_time
    async def storm() -> None:
        random = Random(seed)
        house = House(
            rooms={"m": {"a": 2, "b": 1}, "n": {"c": 1}},
            adapters={"b": {"x"}},
            max_waiting=30,
            max_wait_s=40.0,
        )
        for step in range(1500):
            await settle(random.randrange(3))
            for _ in range(random.randrange(1, 4)):
                _random_move(house, random, f"{step}.{_}")
            if random.random() < 0.05:
                await asyncio.sleep(random.random() * 8.0)
            if random.random() < 0.1:
                await settle(6)
                _check_at_rest(house)
        await _wind_down(house, random)

    storm()


def _random_move(house: House, random: Random, id: str) -> None:
    """Several of these happen in one tick, in any order: that is where a lease could get lost."""
    move = random.random()
    if move < 0.45:
        pool = Pool(random.choice("mmmn"))
        adapter = random.choice([None, None, None, "x"]) if pool.model == "m" else None
        tried = frozenset(random.sample("ab", k=random.choice([0, 0, 1])))
        house.start(id, pool=pool, adapter=adapter, tried=tried, priority=random.randrange(2))
    elif move < 0.65 and house.tasks:
        house.tasks[random.choice(list(house.tasks))].cancel()
    elif move < 0.95 and house.placer.open_leases:
        held = [lease for lease in house.placer.open_leases if _is_held(house, lease)]
        if held:
            random.choice(held).release(Outcome.OK)
    else:
        house.queue.pump()


def _is_held(house: House, lease: Lease) -> bool:
    task = house.tasks[lease.demand.request.id]
    return task.done() and not task.cancelled() and task.exception() is None


def _check_at_rest(house: House) -> None:
    """Every open lease has an owner, every waiter is in line, and nobody waits who could have a place."""
    waiting = [id for id, task in house.tasks.items() if not task.done()]
    assert len(waiting) == house.queue.num_waiting
    assert all(_is_held(house, lease) for lease in house.placer.open_leases)
    for model, rooms in house.rooms.items():
        assert all(house.placer.num_open(model, name) <= room for name, room in rooms.items())
    before = len(house.placer.placed)
    house.queue.pump()
    assert len(house.placer.placed) == before
    for id in [id for id, task in house.tasks.items() if task.done() and not _has_open_lease(house, id)]:
        task = house.tasks.pop(id)
        if not task.cancelled() and task.exception() is not None:
            assert isinstance(task.exception(), Expired | Overloaded)


def _has_open_lease(house: House, id: str) -> bool:
    return any(lease.demand.request.id == id for lease in house.placer.open_leases)


async def _wind_down(house: House, random: Random) -> None:
    while True:
        await settle(6)
        _check_at_rest(house)
        if not house.placer.open_leases:
            break
        random.choice(house.placer.open_leases).release(Outcome.OK)
    # Whoever still waits has tried the only replica with its adapter.
    await asyncio.sleep(50.0)
    await settle(6)
    _check_at_rest(house)
    assert (house.queue.num_waiting, house.tasks) == (0, {})
