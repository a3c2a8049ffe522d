import asyncio

import pytest

from engine.loop import EngineLoop
from engine.prefixes import NO_SCOPE, Cleared, Medium, Removed, Stored
from engine.server import following
from engine.server.following import TooSlow, follow
from tests.engine.requests import BLOCK_SIZE, core, request
from tests.engine.steps import Steps


async def test_what_is_held_comes_in_chains_and_then_each_change() -> None:
    steps = Steps()
    steps.allow(1000)
    engine = EngineLoop(core(), steps.run)
    engine.start()
    with engine.submit(request(range(3 * BLOCK_SIZE), max_tokens=1)) as stream:
        await anext(stream)
    async with follow(engine) as (held, changes):
        assert [(len(stored.prefixes), stored.medium) for stored in held] == [(3, Medium.GPU)]
        await engine.call(lambda: engine.core.scheduler.pool.clear())
        assert await anext(changes) == Cleared()
    await engine.call(lambda: None)
    assert engine.listeners == []
    engine.stop("the test is over")
    assert await asyncio.to_thread(engine.join, 10)


async def test_a_reader_that_falls_behind_is_told_to_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "_MOST_WAITING", 3)
    waiting = following._Waiting(asyncio.get_running_loop())
    for number in range(5):
        waiting.put([Removed([number], Medium.GPU)])
    with pytest.raises(TooSlow, match="subscribe again"):
        await anext(waiting.taken())


def test_chains_part_where_a_block_has_another_parent_or_tier() -> None:
    pool = core(num_blocks=8, num_host_blocks=4).scheduler.pool
    for tokens in ([1] * 8, [1] * 4 + [2] * 4):
        table = pool.allocate(2)
        for index, block_hash in enumerate((tokens[0], sum(tokens) + 100)):
            pool.publish(table, index, block_hash, tokens, NO_SCOPE)
        pool.release(table)
    held = [Stored([prefix], Medium.GPU) for prefix in pool.held(Medium.GPU)]
    assert [len(stored.prefixes) for stored in following._chains(held)] == [2, 1]
