import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from queue import SimpleQueue

import pytest

from engine.adapters import UnknownAdapter
from engine.batch import Batch
from engine.loop import EngineError, EngineLoop, OutputStream
from engine.prefixes import Change, Cleared, Stored
from tests.engine.requests import BLOCK_SIZE, add_adapters, core, request
from tests.engine.steps import Steps


@pytest.fixture
def steps() -> Iterator[Steps]:
    steps = Steps()
    yield steps
    steps.allow(1000)


@asynccontextmanager
async def running(steps: Steps, **options: int) -> AsyncIterator[EngineLoop]:
    engine = EngineLoop(core(**options), steps.run)
    engine.start()
    yield engine
    engine.stop("the test is over")
    steps.allow(1000)
    assert await asyncio.to_thread(engine.join, 10)


async def tokens(stream: OutputStream) -> list[int]:
    return [token async for output in stream for token in output.token_ids]


async def test_each_output_arrives_when_its_step_is_done(steps: Steps) -> None:
    async with running(steps) as engine:
        with engine.submit(request((1, 2), max_tokens=2)) as stream:
            steps.allow()
            assert (await anext(stream)).token_ids == (3,)
            steps.allow()
            assert (await anext(stream)).token_ids == (4,)
            with pytest.raises(StopAsyncIteration):
                await anext(stream)


async def test_requests_that_come_during_a_step_join_the_next_one(steps: Steps) -> None:
    async with running(steps) as engine:
        with engine.submit(request(name="a")), engine.submit(request(name="b")):
            await steps.next()
            with engine.submit(request(name="c")):
                steps.allow()
                await steps.next()
                steps.allow()
                assert set(await steps.next()) == {"a", "b", "c"}


async def test_leaving_before_the_first_token_frees_the_blocks_at_the_next_step_boundary(steps: Steps) -> None:
    async with running(steps) as engine:
        with engine.submit(request(range(20), name="gone")):
            assert await steps.next() == ["gone"]
            assert engine.core.scheduler.pool.num_used == 5
        with engine.submit(request(name="stays")):
            steps.allow()
            assert await steps.next() == ["stays"]
            assert engine.core.scheduler.pool.num_used == 1


async def test_leaving_while_queued_frees_the_place(steps: Steps) -> None:
    async with running(steps, max_num_seqs=1) as engine:
        with engine.submit(request(name="a", max_tokens=1)):
            await steps.next()
            with engine.submit(request(name="gone")):
                pass
            with engine.submit(request(name="b")):
                steps.allow()
                assert await steps.next() == ["b"]
                assert engine.core.scheduler.num_waiting == 0


async def test_a_cancelled_reader_aborts_its_request(steps: Steps) -> None:
    async with running(steps) as engine:

        async def read() -> None:
            with engine.submit(request(name="gone")) as stream:
                await anext(stream)

        reader = asyncio.create_task(read())
        assert await steps.next() == ["gone"]
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        with engine.submit(request(name="stays")):
            steps.allow()
            assert await steps.next() == ["stays"]


async def test_a_failed_step_is_told_to_its_requests_and_the_loop_goes_on(steps: Steps) -> None:
    async with running(steps) as engine:
        with engine.submit(request()) as broken:
            await steps.next()
            steps.leave.put(RuntimeError("out of luck"))
            with pytest.raises(EngineError, match="out of luck") as caught:
                await anext(broken)
            assert not caught.value.is_stopped
        with engine.submit(request((1, 2), max_tokens=2)) as stream:
            steps.allow(2)
            assert await tokens(stream) == [3, 4]


async def test_stopping_ends_every_stream_and_takes_nothing_new(steps: Steps) -> None:
    async with running(steps) as engine:
        with engine.submit(request()) as stream:
            await steps.next()
            engine.stop("closing time")
            with pytest.raises(EngineError, match="closing time") as caught:
                await anext(stream)
            assert caught.value.is_stopped
        with pytest.raises(EngineError, match="closing time"):
            engine.submit(request())
        assert "STOPPED (closing time)" in repr(engine)


async def test_a_broken_core_ends_every_stream_and_says_so(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(steps) as engine:
        monkeypatch.setattr(type(engine.core), "plan", broken_plan)
        with engine.submit(request()) as stream, pytest.raises(EngineError, match="the engine broke"):
            await anext(stream)
        assert engine.is_stopped


def broken_plan(self: object) -> Batch:
    raise AssertionError("a bug")


async def test_what_can_never_fit_is_refused_at_once(steps: Steps) -> None:
    async with running(steps, num_blocks=2) as engine:
        with pytest.raises(ValueError, match="the KV cache holds 8"):
            engine.submit(request(range(20)))
        assert "0 streams" in repr(engine)


async def test_an_engine_that_was_not_started_takes_nothing() -> None:
    with pytest.raises(EngineError, match="not started"):
        EngineLoop(core(), Steps().run).submit(request())


async def test_a_call_runs_between_two_steps_and_brings_back_what_it_gives_or_raises(steps: Steps) -> None:
    async with running(steps) as engine:
        with engine.submit(request(name="a")):
            await steps.next()
            answer = asyncio.create_task(engine.call(lambda: engine.core.scheduler.num_running))
            await asyncio.sleep(0)
            assert not answer.done()
            steps.allow()
            assert await answer == 1
            await steps.next()
            steps.allow(10)
            with pytest.raises(UnknownAdapter, match="nothing"):
                await engine.call(partial(engine.core.scheduler.adapters.remove, "nothing"))
    with pytest.raises(EngineError, match="the test is over"):
        await engine.call(lambda: None)


async def test_a_call_that_waits_when_the_engine_stops_is_told(steps: Steps) -> None:
    async with running(steps) as engine:
        with engine.submit(request(name="a")):
            await steps.next()
            answer = asyncio.create_task(engine.call(lambda: None))
            await asyncio.sleep(0)
            engine.stop("closing time")
            with pytest.raises(EngineError, match="closing time"):
                await answer


async def test_a_request_whose_adapter_goes_before_its_first_step_has_it_still(steps: Steps) -> None:
    async with running(steps, num_slots=1) as engine:
        adapters = engine.core.scheduler.adapters
        add_adapters(engine.core.scheduler, "a")
        with engine.submit(request(name="first")):
            await steps.next()
            gone = asyncio.create_task(engine.call(partial(adapters.remove, "a")))
            await asyncio.sleep(0)
            with engine.submit(request((1, 2), name="late", adapter="a", max_tokens=2)) as late:
                steps.allow(10)
                adapter = await gone
                with pytest.raises(UnknownAdapter):
                    engine.submit(request(adapter="a"))
                assert await tokens(late) == [3, 4]
        await engine.call(lambda: None)
        assert repr(adapter) == "<Adapter a rank 8 in host memory 0 running gone>"


async def test_an_id_that_is_open_is_not_taken_twice(steps: Steps) -> None:
    async with running(steps) as engine:
        with engine.submit(request(name="a")), pytest.raises(ValueError, match="a request a is open already"):
            engine.submit(request(name="a"))


async def test_asleep_it_takes_nothing_and_says_how_to_wake_it(steps: Steps) -> None:
    async with running(steps) as engine:
        await engine.call(partial(engine.core.sleep, 1))
        with pytest.raises(EngineError, match="POST /wake_up"):
            engine.submit(request())
        await engine.call(engine.core.wake)
        with engine.submit(request((1, 2), max_tokens=1)) as stream:
            steps.allow(1)
            assert await tokens(stream) == [3]


async def test_listeners_are_told_what_each_step_and_each_call_changed(steps: Steps) -> None:
    async with running(steps) as engine:
        told: SimpleQueue[list[Change]] = SimpleQueue()
        engine.core.scheduler.pool.records_changes = True
        engine.listeners.append(told.put)
        with engine.submit(request(range(BLOCK_SIZE * 2), max_tokens=1)) as stream:
            steps.allow(1)
            await tokens(stream)
        (stored,) = await asyncio.to_thread(told.get, timeout=10)
        assert isinstance(stored, Stored)
        assert len(stored.prefixes) == 2
        await engine.call(partial(engine.core.sleep, 1))
        assert await asyncio.to_thread(told.get, timeout=10) == [Cleared()]
