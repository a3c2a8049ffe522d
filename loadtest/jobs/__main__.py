"""`python -m loadtest.jobs NAME`: measures jobs over a Redis of its own. Knows the names, and how figures are printed.

queue (what a job costs with ever more of them waiting), pace (how many one router runs a second).
"""

import argparse
import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvloop

from loadtest.errors import LoadError
from loadtest.jobs import pace, queue
from router.jobs.book import JobBook
from router.store.connection import Store
from router.store.embedded import EmbeddedServer

START_TIMEOUT_S = 10.0
CALL_TIMEOUT_S = 30.0


def main(words: Sequence[str] | None = None) -> int:
    """Print the figures of one name; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.jobs", description="Measures jobs.")
    parser.add_argument("name", choices=list(_NAMES))
    parser.add_argument("--jobs", type=int, help="default 1000000 of queue, 20000 of pace")
    flags = parser.parse_args(list(sys.argv[1:] if words is None else words))
    try:
        uvloop.run(_NAMES[flags.name](flags.jobs))
    except LoadError as error:
        print(f"loadtest.jobs: {error}", file=sys.stderr)
        return error.exit_code
    return 0


async def _queue(num_jobs: int | None) -> None:
    most = num_jobs or 1_000_000
    depths = [most * part // 4 for part in (1, 2, 3, 4)]
    async with _open_book() as (book, _), _open_book() as (short, _):
        costs, room = await queue.measure(book, short, depths, _tell)
    submit, claim, end = (max(cost.ratios[move] for cost in costs) for move in range(3))
    print(f"worst ratio to {queue.SHORT:,} waiting: submit {submit:.2f}, claim {claim:.2f}, end {end:.2f}")
    print(
        f"a job of {len(queue.BODY)} bytes takes {room.waiting_bytes:,.0f} bytes of memory and "
        f"{room.waiting_disk_bytes:,.0f} of disk while it waits; {room.ended_bytes:,.0f} and "
        f"{room.ended_disk_bytes:,.0f} once it has ended with {len(queue.RESULT)}"
    )


def _tell(cost: queue.Cost) -> None:
    told = zip(("submit", "claim", "end"), astuple(cost.deep), cost.ratios, strict=True)
    words = ", ".join(f"{move} {us:.1f} us ({ratio:.2f})" for move, us, ratio in told)
    print(f"{cost.depth:>9,} waiting: Redis' CPU of a job: {words}", flush=True)


async def _pace(num_jobs: int | None) -> None:
    async with _open_book() as (book, server):
        assert server.pid is not None  # it runs
        found = await pace.measure(book, server.pid, num_jobs or 20_000)
    print(
        f"{found.num_jobs:,} jobs by one router process: {found.per_s:,.0f} a second; a job takes "
        f"{found.router_us:.0f} us of the router's CPU and {found.redis_us:.0f} us of Redis'"
    )


@contextlib.asynccontextmanager
async def _open_book() -> AsyncIterator[tuple[JobBook, EmbeddedServer]]:
    """A Redis as the router starts it, and the book in it."""
    with TemporaryDirectory(prefix="pointsman-load") as folder:
        server = EmbeddedServer(Path(folder))
        store = Store(server.url, timeout_s=CALL_TIMEOUT_S)
        async with server.opened(), store.opened():
            async with asyncio.timeout(START_TIMEOUT_S):
                while not store.is_up:  # noqa: ASYNC110  (Redis is waited for)
                    await asyncio.sleep(0.01)
            yield JobBook(store), server


_NAMES: Mapping[str, Callable[[int | None], Coroutine[Any, Any, None]]] = {"queue": _queue, "pace": _pace}

if __name__ == "__main__":
    sys.exit(main())
