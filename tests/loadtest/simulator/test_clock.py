"""Virtual time: order, waits, timeouts, and what happens when something fails."""

import asyncio

import pytest

from loadtest.simulator.clock import VirtualLoop


def test_what_is_due_happens_in_order_of_time_then_of_asking() -> None:
    loop, seen = VirtualLoop(), list[object]()
    for when, name in ((2.0, "c"), (1.0, "a"), (2.0, "d"), (1.0, "b")):
        loop.at(when, lambda name: seen.append((loop.now, name)), name)
    loop.run()
    assert seen == [(1.0, "a"), (1.0, "b"), (2.0, "c"), (2.0, "d")]


def test_a_task_that_sleeps_wakes_at_its_time_and_no_real_time_passes() -> None:
    loop, woke = VirtualLoop(), list[float]()

    async def sleep() -> None:
        await asyncio.sleep(3600.0)
        woke.append(loop.now)

    loop.start(sleep())
    loop.run()
    assert woke == [3600.0]


def test_a_timeout_passes_in_virtual_time() -> None:
    loop, late = VirtualLoop(), list[float]()

    async def wait() -> None:
        try:
            async with asyncio.timeout(5.0):
                await loop.create_future()
        except TimeoutError:
            late.append(loop.now)

    loop.start(wait())
    loop.run()
    assert late == [5.0]


def test_a_timer_that_was_cancelled_does_not_run() -> None:
    loop, seen = VirtualLoop(), list[object]()
    loop.call_later(1.0, seen.append, "cancelled").cancel()
    loop.call_later(2.0, seen.append, "kept")
    loop.run()
    assert seen == ["kept"]


def test_what_a_task_or_a_callback_raises_ends_the_run() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    loop = VirtualLoop()
    loop.start(fail())
    with pytest.raises(ValueError, match="broken"):
        loop.run()
    loop = VirtualLoop()
    loop.call_soon(int, "x")
    with pytest.raises(ValueError, match="invalid literal"):
        loop.run()


def test_stop_leaves_the_rest_undone() -> None:
    loop, seen = VirtualLoop(), list[object]()
    loop.at(1.0, loop.stop)
    loop.at(2.0, seen.append, "too late")
    loop.run()
    assert seen == []
    assert repr(loop) == "<VirtualLoop at 1.000 s, 1 due>"
