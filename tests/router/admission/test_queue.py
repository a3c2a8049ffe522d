import asyncio

import pytest

from router.admission.queue import LocalQueue
from router.core import Outcome, Pool
from router.errors import Expired, NoReplica, Overloaded
from tests.router.admission.fakes import FakePlacer, House
from tests.router.admission.virtual_time import in_virtual_time, settle
from tests.router.nouns import make_demand


def test_an_empty_line_is_tried_without_any_await() -> None:
    placer = FakePlacer({"m": {"a": 1}})

    async def scenario() -> None:
        queue = LocalQueue(placer, asyncio.get_running_loop().time, 1, 1.0)
        place = queue.place(make_demand("r"))
        with pytest.raises(StopIteration) as done:
            place.send(None)
        done.value.value.release(Outcome.OK)

    asyncio.run(scenario())


@in_virtual_time
async def test_a_waiter_wakes_with_its_lease() -> None:
    house = House()
    first = await house.full()
    second = house.start("second")
    await settle()
    assert not second.done()
    assert (house.queue.num_waiting, repr(house.queue)) == (1, "<LocalQueue 1 waiting for 1 models>")
    first.release(Outcome.OK)
    assert (await second).demand.request.id == "second"
    assert house.queue.num_waiting == 0


@in_virtual_time
async def test_the_pump_does_nothing_while_nothing_changed() -> None:
    house = House()
    await house.full()
    second = house.start("second")
    await settle()
    house.queue.pump()
    await settle()
    assert not second.done()
    assert house.placer.placed == ["first"]


@in_virtual_time
async def test_places_go_by_priority_then_arrival() -> None:
    house = House()
    lease = await house.full()
    for id, arrived, priority in (("late", 3.0, 0), ("low", 0.0, 5), ("early", 2.0, 0), ("urgent", 9.0, -1)):
        house.start(id, arrived=arrived, priority=priority)
    await settle()
    for id in ("urgent", "early", "late", "low"):
        lease.release(Outcome.OK)
        lease = await house.tasks[id]
    assert house.placer.placed == ["first", "urgent", "early", "late", "low"]


@in_virtual_time
async def test_a_newcomer_does_not_overtake_who_waits() -> None:
    house = House()
    await house.full()
    house.start("waits")
    await settle()
    house.rooms["m"]["a"] = 2
    newcomer = house.start("newcomer")
    await settle()
    assert not newcomer.done()
    house.queue.pump()
    await settle()
    assert house.placer.placed == ["first", "waits"]


@in_virtual_time
async def test_a_waiting_model_does_not_block_another() -> None:
    house = House(rooms={"m": {"a": 0}, "n": {"b": 1}})
    stuck = house.start("stuck")
    await settle()
    lease = await house.queue.place(house.demand("free", pool=Pool("n")))
    assert not stuck.done()
    house.start("next", pool=Pool("n"))
    await settle()
    assert (house.queue.num_waiting_in(Pool("m")), house.queue.num_waiting_in(Pool("n"))) == (1, 1)
    lease.release(Outcome.OK)
    await house.tasks["next"]
    stuck.cancel()


@in_virtual_time
async def test_a_head_with_an_adapter_that_is_busy_does_not_block_those_behind() -> None:
    house = House(rooms={"m": {"a": 1, "b": 1}}, adapters={"a": {"x"}})
    holder, other = await house.full(), await house.full()
    house.start("needs x", adapter="x")
    house.start("any")
    await settle()
    other.release(Outcome.OK)
    await house.tasks["any"]
    assert not house.tasks["needs x"].done()
    holder.release(Outcome.OK)
    assert (await house.tasks["needs x"]).replica.id == "a"


@in_virtual_time
async def test_a_newcomer_passes_waiters_whom_only_their_own_limits_hold() -> None:
    house = House(rooms={"m": {"a": 1, "b": 1}})
    await house.full()
    house.start("retry", tried=frozenset({"b"}))
    await settle()
    assert (await house.queue.place(house.demand("any"))).replica.id == "b"
    house.tasks["retry"].cancel()


@in_virtual_time
async def test_more_blocked_lanes_than_one_round_takes_are_finished_in_later_turns() -> None:
    house = House(rooms={"m": {"a": 1, "b": 0}}, adapters={"b": {"fits"}}, max_waiting=200)
    await house.full()
    for number in range(100):
        house.start(str(number), adapter=f"x{number}")
    house.start("last", adapter="fits")
    await settle()
    house.rooms["m"]["b"] = 1
    house.placer.num_tries = 0
    house.queue.pump()
    assert house.placer.num_tries == 32
    assert (await house.tasks["last"]).replica.id == "b"
    await settle(10)
    tried_after = house.placer.num_tries
    await settle(10)
    assert house.placer.num_tries == tried_after == 101, "it comes to rest"
    for task in house.tasks.values():
        task.cancel()


@in_virtual_time
async def test_the_wait_ends_at_the_requests_deadline() -> None:
    house, loop = House(), asyncio.get_running_loop()
    await house.full()
    with pytest.raises(Expired, match=r"within 4.0 s: all its replicas are busy"):
        await house.queue.place(house.demand("r", deadline=loop.time() + 4.0))
    assert loop.time() == pytest.approx(104.0)


@in_virtual_time
async def test_the_wait_ends_after_max_wait() -> None:
    house, loop = House(max_wait_s=7.0), asyncio.get_running_loop()
    await house.full()
    with pytest.raises(Expired):
        await house.queue.place(house.demand("r"))
    assert loop.time() == pytest.approx(107.0)


@in_virtual_time
async def test_a_wait_that_is_over_leaves_no_timer() -> None:
    house, loop = House(), asyncio.get_running_loop()
    lease = await house.full()
    served, cancelled = house.start("served"), house.start("cancelled")
    await settle()
    cancelled.cancel()
    lease.release(Outcome.OK)
    await served
    await settle()
    assert [timer for timer in loop._scheduled if not timer.cancelled()] == []  # type: ignore[attr-defined]


@in_virtual_time
async def test_a_deadline_that_has_passed_takes_no_place() -> None:
    house = House()
    with pytest.raises(Expired):
        await house.queue.place(house.demand("r", deadline=asyncio.get_running_loop().time()))
    assert house.placer.num_tries == 0


@in_virtual_time
async def test_a_request_holds_until_a_replica_is_ready() -> None:
    house = House(rooms={})
    house.placer.is_ready = False
    waiter = house.start("r")
    await asyncio.sleep(20.0)
    assert not waiter.done()
    house.rooms["m"] = {"a": 1}
    house.queue.pump()
    assert (await waiter).replica.id == "a"


@in_virtual_time
async def test_no_replica_until_the_end_is_503_with_retry_after() -> None:
    house = House(rooms={})
    house.placer.is_ready = False
    with pytest.raises(NoReplica, match=r"no replica of model m was ready within 30.0 s") as error:
        await house.queue.place(house.demand("r"))
    assert (error.value.status, error.value.retry_after_s) == (503, 5.0)


@in_virtual_time
async def test_a_full_line_refuses_with_the_time_that_it_takes_to_drain() -> None:
    house = House(max_waiting=2)
    lease = await house.full()
    house.start("1")
    house.start("2")
    for id in ("1", "2"):
        await asyncio.sleep(4.0)
        lease.release(Outcome.OK)
        lease = await house.tasks[id]
    house.start("3")
    house.start("4")
    await settle()
    with pytest.raises(Overloaded) as refused:
        await house.queue.place(house.demand("5"))
    assert refused.value.status == 429
    assert refused.value.retry_after_s == pytest.approx(8.0)
    await asyncio.sleep(29.0)
    with pytest.raises(Overloaded) as refused:
        await house.queue.place(house.demand("6"))
    assert refused.value.retry_after_s == pytest.approx(58.0)
    house.tasks["3"].cancel()
    house.tasks["4"].cancel()


@in_virtual_time
@pytest.mark.parametrize(("max_wait_s", "expected"), [(30.0, 30.0), (300.0, 60.0), (0.5, 1.0)])
async def test_retry_after_is_the_longest_wait_while_no_pace_is_known(max_wait_s: float, expected: float) -> None:
    house = House(max_waiting=0, max_wait_s=max_wait_s)
    await house.full()
    with pytest.raises(Overloaded) as refused:
        await house.queue.place(house.demand("r"))
    assert refused.value.retry_after_s == expected


@in_virtual_time
async def test_a_full_line_lets_in_a_request_whose_replica_failed() -> None:
    house = House(rooms={"m": {"a": 1, "b": 0}}, max_waiting=1)
    lease = await house.full()
    house.start("waits", arrived=50.0)
    await settle()
    house.start("retry", arrived=40.0, tried=frozenset({"b"}))
    await settle()
    assert house.queue.num_waiting == 2
    lease.release(Outcome.OK)
    await house.tasks["retry"]
    assert not house.tasks["waits"].done()
    house.tasks["waits"].cancel()


@in_virtual_time
async def test_a_placer_that_fails_fails_its_own_waiter() -> None:
    house = House()
    lease = await house.full()
    poison, behind = house.start("poison"), house.start("behind")
    await settle()
    house.placer.poison = {"poison"}
    lease.release(Outcome.OK)
    assert (await behind).outcome is None
    with pytest.raises(ValueError, match="a plug-in failed"):
        await poison


@in_virtual_time
async def test_gauges_tell_who_waits_and_how_long() -> None:
    house = House()
    await house.full()
    assert (house.queue.oldest_wait_s(Pool("m")), house.queue.num_waiting_in(Pool("never seen"))) == (0.0, 0)
    house.start("1")
    await asyncio.sleep(2.0)
    house.start("2", priority=-1)
    await asyncio.sleep(3.0)
    assert house.queue.oldest_wait_s(Pool("m")) == pytest.approx(5.0)
    house.tasks["1"].cancel()
    await settle()
    assert house.queue.oldest_wait_s(Pool("m")) == pytest.approx(3.0)
    house.tasks["2"].cancel()


@pytest.mark.parametrize(("option", "value"), [("max_waiting", -1), ("max_wait_s", 0.0)])
def test_limits_that_make_no_sense_are_refused(option: str, value: float) -> None:
    limits = {"max_waiting": 1, "max_wait_s": 1.0, option: value}
    with pytest.raises(ValueError, match=option):
        LocalQueue(FakePlacer({}), lambda: 0.0, **limits)  # type: ignore[arg-type]


@in_virtual_time
async def test_others_are_told_that_somebody_waits_until_nobody_does() -> None:
    told: list[int] = []
    house = House()
    house.queue.on_waiting = told.append
    first = await house.full()
    house.start("second")
    third = house.start("third")
    await settle()
    assert told == [1, 2]
    third.cancel()
    await settle()
    first.release(Outcome.OK)
    await settle()
    assert told == [1, 2, 1, 0]
