import asyncio
import sys

import pytest

from router.config import ConfigError, Settings
from router.supervisor import MOST_EARLY_DEATHS, Supervisor


async def test_workers_that_die_before_they_serve_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong with all of them will not mend by itself; once one has served, it is tried for ever."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    supervisor = Supervisor(Settings(replica=("http://127.0.0.1:9",), port=0, workers=2))
    with pytest.raises(ConfigError, match="The workers die before they serve"):
        async with asyncio.timeout(20):
            await supervisor.run(asyncio.Event(), lambda: None)
    assert supervisor.num_deaths >= MOST_EARLY_DEATHS
    assert supervisor.processes == {}
    assert repr(supervisor) == "<Supervisor 0 of 2 workers serve>"


async def test_a_stop_before_anything_serves_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/sleep")  # it ends at once: it cannot make sense of our words
    monkeypatch.setattr("router.supervisor.MOST_EARLY_DEATHS", 1000)
    supervisor, stop = Supervisor(Settings(replica=("http://127.0.0.1:9",), port=0, workers=2)), asyncio.Event()
    asyncio.get_running_loop().call_later(0.2, stop.set)
    async with asyncio.timeout(20):
        await supervisor.run(stop, lambda: pytest.fail("nothing serves"))
    assert supervisor.processes == {}


def test_where_memory_cannot_be_shared_there_is_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.memfd_create")
    with pytest.raises(ConfigError, match="`workers` must be 1"):
        Supervisor(Settings(workers=2))
