"""Composes the room of jobs over the store and the proxy: who runs them, who tells their end, where files lie. Decides
nothing itself."""

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from router.admission.opening import state_folder
from router.config import ConfigError, Settings
from router.jobs.addresses import Reach, parse_networks
from router.jobs.batches import BatchBook, BatchRunner
from router.jobs.book import JobBook
from router.jobs.files import Shelf
from router.jobs.hooks import HookSender
from router.jobs.pages import JobPages
from router.jobs.runner import Begin, JobRunner
from router.jobs.secrets import SecretBook
from router.jobs.signing import parse_secret
from router.ports import Clock
from router.store.connection import Store

SWEEP_S = 60.0
# While others wait for answers, so many jobs of each process may run all the same: nothing starves.
FLOOR = 1


@dataclass(frozen=True, slots=True)
class Backlog:
    """All that runs jobs in this process."""

    pages: JobPages
    batch_runner: BatchRunner

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.pages.runner.run())
            group.create_task(self.pages.sender.run())
            group.create_task(self.batch_runner.run())
            group.create_task(self._sweep())

    async def _sweep(self) -> None:
        while True:
            await self.pages.shelf.sweep()
            await asyncio.sleep(SWEEP_S)


def open_backlog(
    settings: Settings, store: Store | None, begin: Begin, clock: Clock, num_waiting: Callable[[], int]
) -> Backlog | None:
    """None where there is no store to keep jobs in. Raises ConfigError for settings that are wrong."""
    if store is None or settings.max_jobs == 0:
        return None
    most = max(1, settings.max_jobs // settings.workers)

    def num_free(num_held: int) -> int:
        return (most if num_waiting() == 0 else FLOOR) - num_held

    book, shelf, reach = JobBook(store), _shelf(settings), _reach(settings)
    runner = JobRunner(book, begin, clock, num_free, settings.request_timeout_s)
    sender = HookSender(book, SecretBook(store, _secrets(settings)), reach)
    batches = BatchBook(book)
    pages = JobPages(book, batches, shelf, runner, sender, reach, settings.job_keep_s)
    return Backlog(pages, BatchRunner(batches, shelf, runner.wake))


def _shelf(settings: Settings) -> Shelf:
    folder = state_folder(settings, os.environ) / "files"
    return Shelf(folder, settings.max_file_bytes, settings.max_files_bytes)


def _reach(settings: Settings) -> Reach:
    try:
        return Reach(parse_networks(settings.webhook_network), settings.webhook_http)
    except ValueError as error:
        raise ConfigError(f"The setting `webhook_network` is wrong: {error}.") from None


def _secrets(settings: Settings) -> Sequence[bytes]:
    try:
        return [parse_secret(secret) for secret in settings.webhook_secret]
    except ValueError as error:
        raise ConfigError(f"The setting `webhook_secret` is wrong: {error}.") from None
