"""`pointsman batch`: a file of requests is uploaded, run and fetched again, with a bar that shows how far it is. Knows
flags, terminals and Ctrl-C; what is said to the router is `batchclient.py`'s.

A batch runs in the router: whoever stops looking leaves it running, and can look again by its id.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from router.batchclient import BatchClient, BatchFailed, BatchSeen, RouterAway, look_into, open_session
from router.config import credentials

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

POLL_S = 0.5
# Where nobody watches a terminal, a line now and then says how far it is.
LINE_S = 10.0
INTERRUPTED = 130

Flags = argparse.Namespace
Steps = Callable[[BatchClient, Flags], Coroutine[Any, Any, int]]


def add_batch(parser: argparse.ArgumentParser, default_url: str) -> None:
    """The actions of `pointsman batch`."""
    actions = parser.add_subparsers(metavar="ACTION", required=True, parser_class=type(parser))

    def add(name: str, text: str, run: Steps) -> argparse.ArgumentParser:
        action = actions.add_parser(name, help=text, description=text, allow_abbrev=False)
        action.add_argument("--url", default=default_url, help=f"the router's data port (default {default_url})")
        action.set_defaults(parser=action, command=lambda flags: asyncio.run(_act(run, flags)))
        return action

    run = add("run", "upload a file of requests, run it, and write the results beside it", _run)
    run.add_argument("file", type=Path, help="JSON lines as OpenAI's Batch API has them")
    _add_following(run)
    resume = add("resume", "look after a batch again: wait for its end, and write its results", _resume)
    resume.add_argument("id", help="as `run` and `list` show it")
    _add_following(resume)
    listing = add("list", "show the latest batches", _list)
    listing.add_argument("--limit", type=int, default=20, metavar="N", help="at most so many (default 20)")
    add("cancel", "begin no more requests of a batch", _cancel).add_argument("id", help="as `list` shows it")


def _add_following(action: argparse.ArgumentParser) -> None:
    action.add_argument(
        "--output", type=Path, metavar="PATH", help="write PATH.results.jsonl and PATH.errors.jsonl (default: FILE)"
    )
    action.add_argument(
        "--on-interrupt", choices=("leave", "cancel"), default="leave", help="what Ctrl-C does (default: leave it)"
    )


async def _act(run: Steps, flags: Flags) -> int:
    try:
        async with open_session(credentials(os.environ)) as session:
            return await run(BatchClient(flags.url.rstrip("/"), session), flags)
    except BatchFailed as error:
        print(f"pointsman: {error}", file=sys.stderr)
        return 1


async def _run(client: BatchClient, flags: Flags) -> int:
    path: Path = flags.file
    num_bytes, endpoint = await asyncio.to_thread(look_into, path)
    with _Bar() as bar:
        try:
            bar.begin(num_bytes, "bytes uploaded")
            file_id = await client.upload(path, lambda num_sent: bar.show(num_sent, "bytes uploaded"))
        except asyncio.CancelledError:
            print("pointsman: interrupted before there was a batch; nothing runs", file=sys.stderr)
            return INTERRUPTED
        batch = await client.create(file_id, endpoint)
        _say(f"{batch.id} runs")
        return await _follow(client, batch, bar, flags.output or path.with_suffix(""), flags.on_interrupt)


async def _resume(client: BatchClient, flags: Flags) -> int:
    batch = await client.get(flags.id)
    output = flags.output
    if output is None:
        name = await client.file_name(batch.input_file_id)
        output = Path(batch.id if name is None else Path(name).name).with_suffix("")
    with _Bar() as bar:
        return await _follow(client, batch, bar, output, flags.on_interrupt)


async def _follow(client: BatchClient, batch: BatchSeen, bar: "_Bar", output: Path, on_interrupt: str) -> int:
    try:
        batch = await _wait_over(client, batch, bar)
        written = await _fetch(client, batch, output)
    except asyncio.CancelledError:
        bar.stop()
        return await _interrupted(client, batch.id, on_interrupt)
    bar.stop()
    for fault in batch.faults:
        _say(fault)
    counts = batch.request_counts
    _say(f"{batch.id} {batch.status}: {counts.completed} of {counts.total} done, {counts.failed} failed")
    for path in written:
        print(path)
    return 0 if batch.status == "completed" and not counts.failed else 1


async def _wait_over(client: BatchClient, batch: BatchSeen, bar: "_Bar") -> BatchSeen:
    while True:
        bar.begin(batch.request_counts.total, batch.status)
        bar.show(batch.num_ended, f"{batch.status}, {batch.request_counts.failed} failed")
        if batch.is_over:
            return batch
        await asyncio.sleep(POLL_S)
        try:
            batch = await client.get(batch.id)
        except RouterAway as error:
            bar.show(batch.num_ended, f"{error}; it is asked again")


async def _fetch(client: BatchClient, batch: BatchSeen, output: Path) -> list[Path]:
    written = []
    for id, kind in ((batch.output_file_id, "results"), (batch.error_file_id, "errors")):
        if id is not None:
            path = output.with_name(f"{output.name}.{kind}.jsonl")
            await client.download(id, path)
            written.append(path)
    return written


async def _interrupted(client: BatchClient, id: str, on_interrupt: str) -> int:
    again = f"pointsman batch resume {id} --url {client.url}"
    if on_interrupt == "leave":
        _say(f"interrupted: {id} is left running; its results: {again}")
        return INTERRUPTED
    try:
        batch = await client.cancel(id)
    except BatchFailed as error:
        _say(f"interrupted, but {id} could not be cancelled and may still run: {error}")
    else:
        _say(f"interrupted: {id} is {batch.status}; what was done: {again}")
    return INTERRUPTED


async def _list(client: BatchClient, flags: Flags) -> int:
    rows = [["BATCH", "STATUS", "DONE", "FAILED", "TOTAL", "CREATED", "ENDPOINT"]]
    for batch in await client.latest(flags.limit):
        counts = batch.request_counts
        created = datetime.fromtimestamp(batch.created_at).isoformat(" ")
        numbers = [str(number) for number in (counts.completed, counts.failed, counts.total)]
        rows.append([batch.id, batch.status, *numbers, created, batch.endpoint])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(map(str.ljust, row, widths)).rstrip())
    return 0


async def _cancel(client: BatchClient, flags: Flags) -> int:
    batch = await client.cancel(flags.id)
    print(f"{batch.id} {batch.status}")
    return 0


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


@dataclass(eq=False, slots=True)
class _Bar:
    """On a terminal a bar, elsewhere lines now and then; both go to standard error."""

    _progress: "Progress | None" = None
    _task: "TaskID | None" = None
    _total: int = 0
    _told_at: float = field(default=-LINE_S)

    def __enter__(self) -> "_Bar":
        if sys.stderr.isatty():
            # Not before there is a bar to draw: servers are started by the same command, and need none.
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (BarColumn(), TextColumn("{task.percentage:3.0f}%"), TimeElapsedColumn())
            text = TextColumn("{task.completed:.0f} of {task.total:.0f}  {task.description}")
            self._progress = Progress(*columns, text, console=Console(stderr=True))
            self._progress.start()
            self._task = self._progress.add_task("", total=1)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def begin(self, total: int, words: str) -> None:
        self._total = total
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, total=max(1, total), description=words)

    def show(self, num_ended: int, words: str) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=num_ended, description=words)
        elif (now := asyncio.get_running_loop().time()) - self._told_at >= LINE_S:
            self._told_at = now
            _say(f"{num_ended} of {self._total}, {words}")

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()
