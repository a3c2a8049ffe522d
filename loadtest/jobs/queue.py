"""What a job costs in a queue that grows: to submit, to claim and to end, in Redis' memory and on its disk. Knows the
book of jobs and Redis' own figures; runs no job.

Costs are CPU time of the Redis process; its children (who rewrite the append-only file) are not counted. Another Redis
with a short queue is measured in turn with it: what else runs on this machine makes both slower.
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
ROUNDS = 7
MEASURED_PER_ROUND = 1024
SHORT = 1000


@dataclass(frozen=True, slots=True)
class Moves:
    """Microseconds of Redis' CPU for each move of one job."""

    submit_us: float
    claim_us: float
    end_us: float


@dataclass(frozen=True, slots=True)
class Cost:
    """With so many waiting, and in the short queue at the same time."""

    depth: int
    deep: Moves
    short: Moves

    @property
    def ratios(self) -> tuple[float, float, float]:
        """Of submit, claim and end."""
        deep, short = self.deep, self.short
        return deep.submit_us / short.submit_us, deep.claim_us / short.claim_us, deep.end_us / short.end_us


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes that a job takes in memory and of the append-only file: while it waits, and once it has ended and is kept
    (of the file, with all that was written on the way, until Redis rewrites it)."""

    waiting_bytes: float
    waiting_disk_bytes: float
    ended_bytes: float
    ended_disk_bytes: float


async def measure(
    book: JobBook, short: JobBook, depths: list[int], tell: Callable[[Cost], None]
) -> tuple[list[Cost], Room]:
    """Fill the queue from depth to depth; `tell` hears of each. Raises LoadError where moves are lost."""
    await _fill(short, 0, SHORT)
    # Its rewriting would count for some jobs and not for others.
    await book.store.call("CONFIG", "SET", "auto-aof-rewrite-percentage", 0)
    costs, filled, waiting, disk = [], 0, 0.0, 0.0
    for depth in depths:
        before = await _memory(book), await _disk(book)
        await _fill(book, filled, depth)
        filled = depth
        waiting, disk = waiting + await _memory(book) - before[0], disk + await _disk(book) - before[1]
        costs.append(await _cost(book, short, depth))
        tell(costs[-1])
    if await book.num_waiting() != filled:
        raise LoadError("the queue does not hold what was put into it")
    return costs, Room(waiting / filled, disk / filled, *await _ended_bytes(book))


async def _fill(book: JobBook, first: int, last: int) -> None:
    for start in range(first, last, FED_AT_ONCE):
        await book.submit([_job(f"j{number}") for number in range(start, min(last, start + FED_AT_ONCE))])


async def _cost(book: JobBook, short: JobBook, depth: int) -> Cost:
    """Each round leaves the queue as long as it was."""
    rounds = [[await _round(each, f"d{depth}-{number}") for each in (book, short)] for number in range(ROUNDS)]
    deep, other = (Moves(*(median(each[which][move] for each in rounds) for move in range(3))) for which in (0, 1))
    return Cost(depth, deep, other)


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


async def _ended_bytes(book: JobBook) -> tuple[float, float]:
    """Of jobs that have ended and are kept: in memory, and of the file."""
    memory, disk = await _memory(book), await _disk(book)
    await book.submit([_job(f"e{number}", priority=0) for number in range(MEASURED_PER_ROUND)])
    for each in await book.claim(MEASURED_PER_ROUND):
        await book.end(each, JobState.SUCCEEDED, 200, RESULT)
    return (await _memory(book) - memory) / MEASURED_PER_ROUND, (await _disk(book) - disk) / MEASURED_PER_ROUND


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
