"""The load tests of jobs, small: that each measures what it says."""

import pytest

from loadtest.jobs import __main__ as command
from loadtest.jobs import queue
from loadtest.jobs.queue import Cost, Moves


def test_ratios_are_of_each_move() -> None:
    assert Cost(1, Moves(2.0, 6.0, 3.0), Moves(1.0, 2.0, 6.0)).ratios == (2.0, 3.0, 0.5)


async def test_costs_and_bytes_of_a_small_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "ROUNDS", 1)
    monkeypatch.setattr(queue, "MEASURED_PER_ROUND", 128)
    monkeypatch.setattr(queue, "SHORT", 100)
    told: list[Cost] = []
    async with command._open_book() as (book, _), command._open_book() as (short, _):
        costs, room = await queue.measure(book, short, [200, 401], told.append)
        assert (await book.num_waiting(), await short.num_waiting()) == (401, 100)
    assert costs == told
    assert [cost.depth for cost in costs] == [200, 401]
    assert all(
        us >= 0.0 for cost in costs for moves in (cost.deep, cost.short) for us in (moves.submit_us, moves.end_us)
    )
    assert room.waiting_bytes > len(queue.BODY)
    assert room.waiting_disk_bytes > len(queue.BODY)
    assert room.ended_disk_bytes > len(queue.BODY) + len(queue.RESULT)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_command_measures_how_many_jobs_a_router_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["pace", "--jobs", "200"]) == 0
    assert capsys.readouterr().out.startswith("200 jobs by one router process: ")
