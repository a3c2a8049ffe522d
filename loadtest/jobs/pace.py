"""How many jobs a second one router process runs, in front of a mock that answers at once: all steps of a request, its
claim and its end. Knows the book of jobs and a router as a process."""

import asyncio
import time
from dataclasses import dataclass

from loadtest.endure.rig import open_rig
from loadtest.errors import LoadError
from loadtest.peers.accounting import cpu_s
from loadtest.peers.configs import MODEL
from router.jobs.book import JobBook
from router.jobs.states import NewJob

BODY = b'{"model":"%b","messages":[{"role":"user","content":"a few words of a prompt"}]}' % MODEL.encode()
PATIENCE_S = 120.0
FED_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class Pace:
    """Jobs a second by the clock, and microseconds of CPU that each takes of the router and of Redis."""

    num_jobs: int
    per_s: float
    router_us: float
    redis_us: float


async def measure(book: JobBook, redis_pid: int, num_jobs: int, max_jobs: int = 64) -> Pace:
    """Raises LoadError where jobs do not end."""
    flags = [f"--redis={book.store.url}", f"--max-jobs={max_jobs}"]
    rig = open_rig(flags, has_tokenizer=False)
    opened = await asyncio.to_thread(rig.__enter__)
    try:
        await _run(book, "warm", 500)
        marks = time.monotonic(), cpu_s(opened.router.pid), cpu_s(redis_pid)
        await _run(book, "job", num_jobs)
        now = time.monotonic(), cpu_s(opened.router.pid), cpu_s(redis_pid)
    finally:
        await asyncio.to_thread(rig.__exit__, None, None, None)
    spent_s, router_s, redis_s = (after - before for before, after in zip(marks, now, strict=True))
    return Pace(num_jobs, num_jobs / spent_s, router_s / num_jobs * 1e6, redis_s / num_jobs * 1e6)


async def _run(book: JobBook, name: str, number: int) -> None:
    """From the first submit to the last end."""
    jobs = [NewJob(f"async_{name}{each}", "tenant", "/v1/chat/completions", BODY) for each in range(number)]
    for start in range(0, number, FED_AT_ONCE):
        await book.submit(jobs[start : start + FED_AT_ONCE])
    async with asyncio.timeout(PATIENCE_S):
        while await book.num_waiting():  # noqa: ASYNC110  (a router is waited for)
            await asyncio.sleep(0.02)
        for job in jobs[-FED_AT_ONCE:]:  # no more can be running
            while (found := await book.find(job.id)) is None or not found.has_ended:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            if found.state != "succeeded":
                raise LoadError(f"a job ended otherwise: {found.fault}")
