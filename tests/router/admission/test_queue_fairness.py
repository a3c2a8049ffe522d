"""The queue over tenants and bands: whose turn it is, who is refused, who gives way, and what is charged."""

import asyncio

import pytest

from router.core import Band, Outcome, Standing, Whereabouts
from router.errors import Displaced, Hopeless, Overloaded
from tests.router.admission.fakes import House
from tests.router.admission.virtual_time import in_virtual_time, settle


def standing(tenant: str, band: Band = Band.NORMAL) -> Standing:
    return Standing(tenant=tenant, band=band)


@in_virtual_time
async def test_a_tenant_with_a_hundred_requests_does_not_hold_up_another() -> None:
    house = House(max_waiting=1000)
    lease = await house.full()
    for number in range(100):
        house.start(f"flood{number}", standing=standing("flood"))
    await settle()
    house.start("quiet", standing=standing("quiet"))
    await settle()
    for _ in range(2):
        lease.release(Outcome.OK)
        lease = house.placer.open_leases[0]
    assert house.placer.placed[1:] == ["flood0", "quiet"]
    for task in house.tasks.values():
        task.cancel()


@in_virtual_time
async def test_a_flow_is_charged_what_it_took_and_refunded_what_it_did_not() -> None:
    house = House(rooms={"m": {"a": 9}})
    leases = [await house.queue.place(house.demand(str(number), standing=standing("t"))) for number in range(3)]
    flow = house.queue._lines["m"].line.flows.get(standing("t"))
    charged = flow.counter
    assert charged == 3 * (64 + 128 + 1)
    leases[0].release(Outcome.CLIENT_GONE)
    assert flow.counter == charged - 193
    leases[1].start()
    leases[1].output_tokens = 1000
    leases[1].release(Outcome.OK)
    assert flow.counter == 193 + 64 + 1000 + 1
    assert flow.mean_output_tokens == 1000


@in_virtual_time
async def test_a_line_that_was_empty_for_long_is_not_taken_for_one_that_stands_still() -> None:
    house = House()
    lease = await house.full()
    for number in range(12):
        house.start(f"r{number}")
    await settle()
    for number in range(12):
        await asyncio.sleep(1.0)
        lease.release(Outcome.OK)
        lease = await house.tasks[f"r{number}"]
    await asyncio.sleep(500.0)
    house.start("newcomer", arrived=asyncio.get_running_loop().time())
    await settle()
    assert house.queue.num_waiting == 1
    lease.release(Outcome.OK)
    assert (await house.tasks["newcomer"]).demand.request.id == "newcomer"


@in_virtual_time
async def test_work_whose_wait_would_outlast_its_deadline_is_refused_at_once_with_a_true_retry_after() -> None:
    house, loop = House(), asyncio.get_running_loop()
    lease = await house.full()
    for number in range(20):
        house.start(str(number))
    for _ in range(12):
        await asyncio.sleep(1.0)
        lease.release(Outcome.OK)
        lease = house.placer.open_leases[0]
        await settle()
    assert house.queue.num_waiting == 8
    with pytest.raises(Hopeless, match="8 requests are before this one: it would wait about 9 s") as refused:
        await house.queue.place(house.demand("hasty", deadline=loop.time() + 5.0))
    assert refused.value.status == 429
    assert refused.value.retry_after_s == pytest.approx(6.5), "half of its time is left for the answer"
    patient = house.demand("patient", deadline=loop.time() + 20.0)
    task = asyncio.ensure_future(house.queue.place(patient))
    await settle()
    assert house.queue.whereabouts(patient) == Whereabouts(9, 9.0)
    task.cancel()
    await settle()
    assert house.queue.whereabouts(patient) is None
    for each in house.tasks.values():
        each.cancel()


@in_virtual_time
async def test_a_full_line_makes_room_for_a_higher_band_and_tells_the_victim() -> None:
    house = House(max_waiting=2)
    await house.full()
    victim = house.start("bulk", standing=standing("t", Band.BULK))
    house.start("normal")
    await settle()
    high = house.start("high", standing=standing("t", Band.HIGH))
    with pytest.raises(Displaced, match="more right") as told:
        await victim
    assert (told.value.status, told.value.code, told.value.retry_after_s) == (429, "displaced", 30.0)
    with pytest.raises(Overloaded):
        await house.queue.place(house.demand("more bulk", standing=standing("t", Band.BULK)))
    assert house.queue.num_waiting == 2
    high.cancel()
    house.tasks["normal"].cancel()


@in_virtual_time
async def test_a_full_line_of_one_tenant_makes_room_for_another() -> None:
    house = House(max_waiting=3)
    await house.full()
    floods = [house.start(f"flood{number}", standing=standing("flood")) for number in range(3)]
    await settle()
    quiet = house.start("quiet", standing=standing("quiet"))
    with pytest.raises(Displaced):
        await floods[2]
    assert not quiet.done()
    for task in (*floods[:2], quiet):
        task.cancel()


@in_virtual_time
async def test_the_highest_band_takes_the_place_of_bulk_that_has_not_begun_to_answer() -> None:
    house = House()
    lease = await house.queue.place(house.demand("bulk", standing=standing("t", Band.BULK)))
    lease.on_displaced = lambda: lease.release(Outcome.REJECTED)
    high = house.start("high", standing=standing("t", Band.HIGH))
    assert (await high).demand.request.id == "high"
    assert lease.outcome is Outcome.REJECTED


@in_virtual_time
async def test_a_lease_that_was_given_to_who_had_just_left_costs_its_flow_nothing() -> None:
    house = House()
    lease = await house.full()
    gone = house.start("gone", standing=standing("t"))
    await settle()
    lease.release(Outcome.OK)
    gone.cancel()
    await settle()
    flow = house.queue._lines["m"].line.flows.get(standing("t"))
    assert flow.counter == house.queue._lines["m"].line.flows.floor
