"""Batches: each line of a file becomes a job, a window of them at a time, and results are written as they end. Knows
the life of a batch; the lines are `lines.py`'s, the jobs the book's, the disk the shelf's.

One process looks after a batch, by a lease with a fence. Whoever takes over a batch goes on where it stood: results are
on disk before their jobs are forgotten, and what was written beyond what is known is cut off first, so that a line that
has ended is neither run nor told again.
"""

import asyncio
import contextlib
import hashlib
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from router.jobs import lines
from router.jobs.book import JobBook, new_words
from router.jobs.files import FileRecord, NoSpace, Shelf
from router.jobs.lines import Fault, Piece
from router.jobs.results import Results
from router.jobs.states import Job, NewJob
from router.store import names
from router.store.errors import StoreAway

WINDOW = 1000
AT_ONCE = 4
LEASE_S = 30.0
IDLE_S = 0.25
KEEP_S = 30 * 24 * 3600.0
COMPLETION_WINDOW_S = 24 * 3600.0
# Behind every job of its own kind.
PRIORITY = 200
log = logging.getLogger(__name__)


class BatchState(StrEnum):
    """VALIDATING -> FAILED or IN_PROGRESS -> COMPLETED, EXPIRED or, where its file is gone, FAILED; CANCELLING, from
    what is not over -> CANCELLED."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


OVER = frozenset({BatchState.FAILED, BatchState.COMPLETED, BatchState.EXPIRED, BatchState.CANCELLED})


class BatchDocument(msgspec.Struct):
    """What does not change while a batch runs, and when it changed state. Times in seconds since 1970."""

    input_file_id: str
    endpoint: str
    created_at: int
    expires_at: int
    completion_window: str = "24h"
    metadata: dict[str, str] | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: list[dict[str, Any]] = []
    times: dict[str, int] = {}


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as it stands in Redis."""

    id: str
    owner: str
    state: BatchState
    document: BatchDocument
    counts: Mapping[str, int]

    def told(self) -> dict[str, Any]:
        """OpenAI's batch object."""
        document, counts = self.document, self.counts
        moments = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
        times = {f"{moment}_at": document.times.get(moment) for moment in moments}
        errors = {"object": "list", "data": document.errors} if document.errors else None
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": document.endpoint,
            "errors": errors,
            "input_file_id": document.input_file_id,
            "completion_window": document.completion_window,
            "status": self.state,
            "output_file_id": document.output_file_id,
            "error_file_id": document.error_file_id,
            "created_at": document.created_at,
            "expires_at": document.expires_at,
            **times,
            "request_counts": {
                "total": counts["total"],
                "completed": counts["done"],
                "failed": counts["failed"],
            },
            "metadata": document.metadata,
        }


_COUNTS = ("offset", "line", "total", "open", "done", "failed", "out_bytes", "err_bytes", "expires")


@dataclass(frozen=True, slots=True)
class BatchBook:
    """Batches in Redis. Raises StoreAway where that is."""

    book: JobBook

    async def create(self, owner: str, document: BatchDocument, left_s: float) -> Batch:
        id = f"batch_{secrets.token_hex(12)}"
        await self._move("create", id, owner, msgspec.json.encode(document), round(left_s * 1e3))
        found = await self.get(id)
        assert found is not None  # just made
        return found

    async def get(self, id: str, owner: str | None = None) -> Batch | None:
        names_of = ("owner", "state", "document", "cancelling_at", *_COUNTS)
        row = await self.book.store.call("HMGET", f"{names.JOBS}batch:{id}", *names_of)
        found = dict(zip(names_of, row, strict=True))
        if found["owner"] is None or (owner is not None and found["owner"].decode() != owner):
            return None
        document = msgspec.json.decode(found["document"], type=BatchDocument)
        if found["cancelling_at"] is not None:
            document.times["cancelling"] = int(found["cancelling_at"])
        counts = {name: int(found[name] or 0) for name in _COUNTS}
        return Batch(id, found["owner"].decode(), BatchState(found["state"].decode()), document, counts)

    async def owned(self, owner: str, after: str | None, most: int) -> list[Batch]:
        """The latest first; behind `after` where that is given."""
        key = f"{names.JOBS}batches:{owner}"
        first = 0
        if after is not None:
            rank = await self.book.store.call("ZREVRANK", key, after)
            first = 0 if rank is None else int(rank) + 1
        ids = await self.book.store.call("ZREVRANGE", key, first, first + most - 1)
        found = [await self.get(id.decode()) for id in ids]
        return [batch for batch in found if batch is not None]

    async def cancel(self, id: str, owner: str) -> bool:
        """Is there such a batch of this owner?"""
        return await self._move("cancel", id, owner) is not None

    async def take(self) -> tuple[str, int] | None:
        """Id and fence of a batch that nobody looks after."""
        found = await self._move("take", "", round(LEASE_S * 1e3))
        return None if found is None else (found[0].decode(), int(found[1]))

    async def ours(self, what: str, id: str, fence: int, *words: Any) -> bool:
        """A move of who looks after it; False where that is another by now."""
        return bool(await self._move(what, id, fence, *words))

    async def ended(self, id: str, most: int) -> list[Job]:
        """Jobs of its lines that ended and are not written yet."""
        ids = await self.book.store.call("LRANGE", f"{names.JOBS}batch:{id}:ended", 0, most - 1)
        return [job for job in await self.book.read([each.decode() for each in ids]) if job is not None]

    async def open_lines(self, id: str) -> list[str]:
        """Jobs of its lines that are not written yet."""
        return [each.decode() for each in await self.book.store.call("SMEMBERS", f"{names.JOBS}batch:{id}:open")]

    async def _move(self, *words: Any) -> Any:
        return await self.book.run("batch", words)


class Lost(Exception):
    """Another process looks after the batch."""


@dataclass(eq=False, slots=True)
class BatchRunner:
    """Looks after batches, a few at a time in this process. `on_fed` is told when there are new jobs."""

    batches: BatchBook
    shelf: Shelf
    on_fed: Callable[[], None] = lambda: None
    wall: Callable[[], float] = time.time
    window: int = WINDOW

    async def run(self) -> None:
        """Take batches and look after them, until cancelled."""
        room = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as group:
            while True:
                await room.acquire()
                found = None
                with contextlib.suppress(StoreAway):
                    found = await self.batches.take()
                if found is None:
                    room.release()
                    await asyncio.sleep(IDLE_S)
                else:
                    group.create_task(self._look_after_in(room, *found))

    async def _look_after_in(self, room: asyncio.Semaphore, id: str, fence: int) -> None:
        try:
            await self._look_after(id, fence)
        except Lost:
            log.info("batch %s is looked after by another router", id)
        except StoreAway as error:
            log.warning("batch %s waits: %s", id, error)
            await asyncio.sleep(IDLE_S)
        except (OSError, NoSpace) as error:
            # What was half written is cut off by whoever takes it next, once its lease is over.
            log.error("batch %s waits for its disk: %s", id, error)
        finally:
            room.release()

    async def _look_after(self, id: str, fence: int) -> None:
        batch = await self._get(id)
        if batch.state is BatchState.VALIDATING:
            batch = await self._validate(batch, fence)
        results = Results(self.shelf.folder, id)
        if batch.state not in OVER:
            await asyncio.to_thread(results.cut, batch.counts["out_bytes"], batch.counts["err_bytes"])
        while batch.state not in OVER:
            moved = await self._collect(batch, fence, results)
            batch = await self._get(id)
            if batch.state in (BatchState.CANCELLING, BatchState.IN_PROGRESS):
                moved += await self._go_on(batch, fence, results)
            batch = await self._get(id)
            if not moved:
                await self._ours("keep", batch, fence, round(LEASE_S * 1e3))
                await asyncio.sleep(IDLE_S)

    async def _validate(self, batch: Batch, fence: int) -> Batch:
        document = batch.document
        try:
            record = await self.shelf.get(batch.owner, document.input_file_id)
            total, faults = await asyncio.to_thread(lines.validate, self.shelf.path(record.id), document.endpoint)
        except Exception as error:  # the file is gone, or cannot be read
            total, faults = 0, [Fault(0, "invalid_file", f"The file cannot be read: {error}.")]
        if faults:
            document.errors = [fault.told() for fault in faults]
            await self._over(batch, fence, BatchState.FAILED)
        else:
            document.times["in_progress"] = int(self.wall())
            await self._ours("begin", batch, fence, total, msgspec.json.encode(document))
        return await self._get(batch.id)

    async def _go_on(self, batch: Batch, fence: int, results: Results) -> int:
        """Feed more lines, or come to an end. How many were fed."""
        counts = batch.counts
        has_expired = counts["expires"] <= self.wall() * 1e3
        if batch.state is BatchState.CANCELLING or has_expired:
            await self._stop(batch, fence, results, has_expired)
            return 0
        is_fed = counts["done"] + counts["failed"] + counts["open"] >= counts["total"]
        if is_fed:
            if counts["open"] == 0:
                await self._finish(batch, fence, results, BatchState.COMPLETED)
            return 0
        if counts["open"] > self.window // 2:
            return 0
        path = self.shelf.path(batch.document.input_file_id)
        most = self.window - counts["open"]
        try:
            piece = await asyncio.to_thread(lines.read, path, counts["offset"], counts["line"], most)
        except FileNotFoundError:
            await self._end_without_file(batch, fence, results)
            return 0
        await self._feed(batch, fence, piece)
        return len(piece.lines)

    async def _end_without_file(self, batch: Batch, fence: int, results: Results) -> None:
        """It was deleted meanwhile: what runs may end, what was not begun is not known any more."""
        if batch.counts["open"] == 0:
            words = f"The file was deleted: nothing behind line {batch.counts['line']} was begun."
            batch.document.errors = [Fault(batch.counts["line"], "input_file_deleted", words, "input_file_id").told()]
            await self._finish(batch, fence, results, BatchState.FAILED)

    async def _feed(self, batch: Batch, fence: int, piece: Piece) -> None:
        left_s = max(0.0, batch.counts["expires"] / 1e3 - self.wall())
        words: list[Any] = [piece.offset, piece.line, len(piece.lines)]
        for number, line in piece.lines:
            words += new_words(
                NewJob(
                    id=f"{batch.id}-{number}",
                    owner=batch.owner,
                    surface=line.url,
                    body=bytes(line.body),
                    priority=PRIORITY,
                    queue_timeout_s=left_s,
                    most_tries=5,
                    most_delay_s=60.0,
                    batch=batch.id,
                    name=line.custom_id,
                )
            )
        await self._ours("feed", batch, fence, *words)
        self.on_fed()

    async def _collect(self, batch: Batch, fence: int, results: Results) -> int:
        ended = await self.batches.ended(batch.id, self.window)
        if not ended:
            return 0
        told = [lines.result_line(job) for job in ended]
        out = b"".join(line for is_output, line in told if is_output)
        err = b"".join(line for is_output, line in told if not is_output)
        await asyncio.to_thread(results.append, out, err)
        num_done = sum(is_output for is_output, _ in told)
        sizes = await asyncio.to_thread(results.sizes)
        words = [*sizes, num_done, len(told) - num_done, *(job.id for job in ended)]
        await self._ours("settle", batch, fence, *words)
        return len(ended)

    async def _stop(self, batch: Batch, fence: int, results: Results, has_expired: bool) -> None:
        """Lines that run may end; those that wait are cancelled; what was never begun is told in the errors."""
        if batch.counts["open"]:
            for job_id in await self.batches.open_lines(batch.id):
                await self.batches.book.cancel(job_id, batch.owner)
            await asyncio.sleep(IDLE_S)
            return
        await self._tell_unserved(batch, fence, results, "batch_expired" if has_expired else "batch_cancelled")
        await self._finish(batch, fence, results, BatchState.EXPIRED if has_expired else BatchState.CANCELLED)

    async def _tell_unserved(self, batch: Batch, fence: int, results: Results, code: str) -> None:
        offset, number = batch.counts["offset"], batch.counts["line"]
        path = self.shelf.path(batch.document.input_file_id)
        while batch.counts["total"] and await asyncio.to_thread(path.exists):
            piece = await asyncio.to_thread(lines.read, path, offset, number, self.window)
            told = b"".join(lines.unserved_line(line, code, "It was not begun.") for _, line in piece.lines)
            await asyncio.to_thread(results.append, b"", told)
            sizes = await asyncio.to_thread(results.sizes)
            await self._ours("set", batch, fence, "offset", piece.offset, "line", piece.line, "err_bytes", sizes[1])
            await self._ours("settle", batch, fence, *sizes, 0, len(piece.lines))
            offset, number = piece.offset, piece.line
            if piece.is_last:
                return

    async def _finish(self, batch: Batch, fence: int, results: Results, state: BatchState) -> None:
        document, now = batch.document, int(self.wall())
        document.times["finalizing"] = now
        sizes = await asyncio.to_thread(results.sizes)
        made = []
        for path, size, kind in zip((results.out, results.err), sizes, ("output", "error"), strict=True):
            name = f"{batch.id}_{kind}.jsonl"
            # The same id each time: whoever finishes it after a death half-way writes the same file again.
            id = f"file-{hashlib.sha256(name.encode()).hexdigest()[:24]}"
            record = FileRecord(id, batch.owner, name, "batch_output", size, now)
            if size:
                await self.shelf.adopt(await asyncio.to_thread(results.linked, path), record)
            made.append(record.id if size else None)
        document.output_file_id, document.error_file_id = made
        await self._over(batch, fence, state)
        await asyncio.to_thread(results.clear)

    async def _over(self, batch: Batch, fence: int, state: BatchState) -> None:
        batch.document.times[state] = int(self.wall())
        document = msgspec.json.encode(batch.document)
        await self._ours("over", batch, fence, state, document, round(KEEP_S * 1e3))

    async def _ours(self, what: str, batch: Batch, fence: int, *words: Any) -> None:
        """Raises Lost."""
        if not await self.batches.ours(what, batch.id, fence, *words):
            raise Lost

    async def _get(self, id: str) -> Batch:
        batch = await self.batches.get(id)
        if batch is None:
            raise Lost
        return batch
