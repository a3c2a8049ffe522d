"""What a job costs in a queue that grows: to submit, to claim and to end, in Redis' memory and on its disk. Knows the
book of jobs and Redis' own figures; runs no job.

Costs are CPU time of the Redis process, whose clock others on this machine do not touch; its children (who rewrite the
append-only file) are not counted.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from loadtest.errors import LoadError
from router.jobs.book import JobBook
from router.jobs.states import Claimed, JobState, NewJob

BODY = b'{"model":"m","messages":[{"role":"user","content":"%b"}]}' % (b"a few words of a prompt " * 10)
RESULT = b'{"choices":[{"message":{"role":"assistant","content":"%b"}}]}' % (b"a few words of an answer " * 10)
# As many as a runner claims at once, and as a batch feeds.
CLAIMED_AT_ONCE = 64
FED_AT_ONCE = 200
ROUNDS = 5
MEASURED_PER_ROUND = 1024


@dataclass(frozen=True, slots=True)
class Cost:
    """With so many waiting: microseconds of Redis' CPU for each move of one job."""

    depth: int
    submit_us: float
    claim_us: float
    end_us: float


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes that a job takes: waiting in memory, waiting on disk, and in memory once it has ended."""

    waiting_bytes: float
    disk_bytes: float
    ended_bytes: float


async def measure(book: JobBook, depths: list[int], tell: Callable[[Cost], None]) -> tuple[list[Cost], Room]:
    """Fill the queue from depth to depth; `tell` hears of each. Raises LoadError where moves are lost."""
    empty_bytes, empty_disk = await _memory(book), await _disk(book)
    costs, filled = [], 0
    for depth in depths:
        await _fill(book, filled, depth)
        filled = depth
        costs.append(await _cost(book, depth))
        tell(costs[-1])
    if await book.num_waiting() != filled:
        raise LoadError("the queue does not hold what was put into it")
    num_ended = len(depths) * ROUNDS * MEASURED_PER_ROUND
    ended_bytes = await _ended_bytes(book)
    waiting = await _memory(book) - empty_bytes - num_ended * ended_bytes
    await book.store.call("CONFIG", "SET", "auto-aof-rewrite-percentage", 0)
    disk = (await _disk(book) - empty_disk) / (filled + num_ended)
    return costs, Room(waiting / filled, disk, ended_bytes)


async def _fill(book: JobBook, first: int, last: int) -> None:
    for start in range(first, last, FED_AT_ONCE):
        await book.submit([_job(f"j{number}") for number in range(start, min(last, start + FED_AT_ONCE))])


async def _cost(book: JobBook, depth: int) -> Cost:
    """Each round leaves the queue as long as it was."""
    rounds = [await _round(book, f"d{depth}-{number}") for number in range(ROUNDS)]
    return Cost(depth, *(median(each[move] for each in rounds) for move in range(3)))


async def _round(book: JobBook, name: str) -> tuple[float, float, float]:
    marks = [await _cpu_s(book)]
    for number in range(MEASURED_PER_ROUND):
        await book.submit([_job(f"{name}-{number}")])
    marks.append(await _cpu_s(book))
    claimed: list[Claimed] = []
    while len(claimed) < MEASURED_PER_ROUND:
        claimed += await book.claim(CLAIMED_AT_ONCE)
    marks.append(await _cpu_s(book))
    for each in claimed:
        if not await book.end(each, JobState.SUCCEEDED, 200, RESULT):
            raise LoadError("a claim was lost")
    marks.append(await _cpu_s(book))
    submit, claim, end = ((after - before) / MEASURED_PER_ROUND * 1e6 for before, after in pairwise(marks))
    return submit, claim, end


async def _ended_bytes(book: JobBook) -> float:
    """Of a job that has ended and is kept."""
    before = await _memory(book)
    await book.submit([_job(f"e{number}", priority=0) for number in range(MEASURED_PER_ROUND)])
    claimed = await book.claim(MEASURED_PER_ROUND)
    for each in claimed:
        await book.end(each, JobState.SUCCEEDED, 200, RESULT)
    return (await _memory(book) - before) / len(claimed)


def _job(id: str, priority: int = 1) -> NewJob:
    return NewJob(f"async_{id:>024}", "tenant", "/v1/chat/completions", BODY, priority, queue_timeout_s=72 * 3600.0)


async def _cpu_s(book: JobBook) -> float:
    found = await _info(book, "cpu")
    return float(found["used_cpu_user"]) + float(found["used_cpu_sys"])


async def _memory(book: JobBook) -> float:
    return float((await _info(book, "memory"))["used_memory"])


async def _disk(book: JobBook) -> float:
    return float((await _info(book, "persistence"))["aof_current_size"])


async def _info(book: JobBook, section: str) -> dict[str, Any]:
    said = await book.store.call("INFO", section)
    if isinstance(said, dict):
        return said
    lines = [line.split(":", 1) for line in bytes(said).decode().splitlines() if ":" in line]
    return dict(lines)
