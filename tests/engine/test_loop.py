import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from engine.loop import EngineError, EngineLoop, OutputStream
from engine.scheduler import Batch
from tests.engine.requests import core, request
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
