"""`serve --workers N`: starts N router processes and the feed, keeps them alive, replaces and stops them.

Knows processes, slots and signals of life; serves no request and knows no replica. A slot is a worker's place: its
listening sockets, which outlive it. What operators see of it is in `company.py`.
"""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from router.config import ConfigError, Settings
from router.listening import names_port
from router.processes import GRACE_S, Process
from router.workers import doors
from router.workers.board import Board
from router.workers.figures import Totals
from router.workers.frames import (
    Ask,
    Drain,
    Drained,
    Explain,
    Explained,
    Exported,
    Found,
    News,
    Open,
    Report,
    Retire,
    Serving,
    Shut,
)
from router.workers.orders import FeedOrders, RouterOrders
from router.workers.questions import Question, Questions

# A process that dies is started again after 0.1 s, then 0.2, 0.4 and so on; one that lived for long begins anew.
FIRST_BACKOFF_S, MOST_BACKOFF_S, LONG_LIFE_S = 0.1, 5.0, 30.0
# Deaths before anything ever served: then it is not bad luck.
MOST_EARLY_DEATHS = 3
SERVING_TIMEOUT_S = 60.0
ASK_TIMEOUT_S = 1.0

log = logging.getLogger(__name__)


class RestartFailed(Exception):
    """A new worker did not come to serve; the old one goes on. One sentence."""


@dataclass(eq=False, slots=True)
class Slot:
    """`helper` takes its connections while it has no worker that serves; `tasks` wait for the ends of its workers."""

    number: int
    sockets: Sequence[socket.socket]
    process: Process | None = None
    helper: Process | None = None
    is_rolling: bool = False
    backoff_s: float = FIRST_BACKOFF_S
    tasks: list[asyncio.Task[None]] = field(default_factory=list)


class Supervisor:
    """Raises ConfigError where several processes cannot be had here."""

    def __init__(self, settings: Settings) -> None:
        if not hasattr(os, "memfd_create") or not hasattr(os, "eventfd"):
            raise ConfigError("The setting `workers` must be 1: several processes share what only Linux has.")
        self.settings = settings
        self.num_deaths = 0
        self.departed = Totals()
        self.processes: dict[Process, int] = {}
        self._slots: list[Slot] = []
        self._feed: Process | None = None
        self._drained: set[str] = set()
        self._answers: asyncio.Queue[Drained] = asyncio.Queue()
        self.questions = Questions(self._tell)
        self._rolling = asyncio.Lock()
        self._news = asyncio.Event()
        self._is_hopeless = asyncio.Event()
        self._wants_restart = asyncio.Event()
        self._stopping = asyncio.Event()
        self._has_served = False

    async def run(self, stop: asyncio.Event, on_open: Callable[[], None]) -> None:
        """Until `stop` is set, then drain; `on_open` is called once all serve. Raises ConfigError."""
        settings = self.settings
        with names_port(settings.host, settings.port, "--port"):
            sockets = doors.listen(settings.host, settings.port, settings.workers)
        # As many again for those that come while others leave.
        self._board = Board.create(2 * settings.workers)
        self._wakers = doors.open_wakers(2 * settings.workers)
        self._listener, self._feed_address = doors.listen_for_feed()
        self._slots = [Slot(number, each) for number, each in enumerate(sockets)]
        try:
            await self._run(stop, on_open)
        finally:
            for process in (*self.processes, *([] if self._feed is None else [self._feed])):
                process.kill()
            self._close()
        if self._is_hopeless.is_set():
            raise ConfigError("The workers die before they serve; why stands above.")

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    @property
    def num_serving(self) -> int:
        return sum(slot.process is not None and slot.process.is_serving.is_set() for slot in self._slots)

    @property
    def reports(self) -> list[Report]:
        """The last report of each process, those included that are leaving."""
        return [process.report for process in self.processes if process.report is not None]

    async def refresh(self) -> None:
        """Have newer reports of all that answer within a second; of the others the last one stands."""
        wanted = {process: process.num_reports + 1 for process in self.processes if process.is_serving.is_set()}
        for process in wanted:
            process.tell(Ask())
        await self._until(lambda: all(p.num_reports >= n or p not in self.processes for p, n in wanted.items()))

    async def set_draining(self, replica_id: str, on: bool) -> None:
        """Tell the feed, and wait until all workers have heard it. A feed that is just starting will know, too."""
        self._drained.add(replica_id) if on else self._drained.discard(replica_id)
        if self._feed is None:
            return
        while not self._answers.empty():
            self._answers.get_nowait()  # to an order whose answer came too late
        self._feed.tell(Drain(replica_id, on))
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                sequence = (await self._answers.get()).sequence
        except TimeoutError:
            log.warning("the feed did not say that %s %s; it will", replica_id, "drains" if on else "serves again")
            return
        await self._until(lambda: all(row.applied >= sequence for row in self._board.live_rows()))

    def restart_soon(self) -> None:
        """`restart_all`, for a signal handler; what fails is logged."""
        self._wants_restart.set()

    async def restart_all(self) -> None:
        """Replace one after the other: the new one serves before the old one leaves. Raises RestartFailed.

        The old ones take with them what they have begun, and may be there for as long as a request may take.
        """
        async with self._rolling:
            for slot in self._slots:
                slot.is_rolling = True
                try:
                    await self._until(lambda: self._free_row() is not None, self.settings.request_timeout_s)
                    await self._replace(slot)
                finally:
                    slot.is_rolling = False
                    if slot.process is None:  # the old one died meanwhile, and the new one has not come
                        slot.tasks.append(self._group.create_task(self._revive(slot, slot.backoff_s)))

    # life

    async def _run(self, stop: asyncio.Event, on_open: Callable[[], None]) -> None:
        async with asyncio.TaskGroup() as group:
            self._group = group
            keeping = [
                group.create_task(self._keep_feed()),
                group.create_task(self._open_all(on_open)),
                group.create_task(self._restart_when_told()),
            ]
            waits = [group.create_task(stop.wait()), group.create_task(self._is_hopeless.wait())]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            self._stopping.set()
            await self._stop_all()
            for task in (*keeping, *waits):
                task.cancel()

    async def _open_all(self, on_open: Callable[[], None]) -> None:
        for slot in self._slots:
            slot.process = await self._start(slot)
        for slot in self._slots:
            while slot.process is None or not slot.process.is_serving.is_set():
                self._news.clear()
                await self._news.wait()
        self._has_served = True
        on_open()

    async def _restart_when_told(self) -> None:
        while True:
            await self._wants_restart.wait()
            self._wants_restart.clear()
            try:
                await self.restart_all()
            except RestartFailed as error:
                log.error("%s", error)

    async def _stop_all(self) -> None:
        """Workers first: they still tell the feed of what they end."""
        for process in self.processes:
            process.leave()
        await self._until(lambda: not self.processes, self.settings.drain_timeout_s + GRACE_S)
        for process in self.processes:
            log.warning("%s did not end within its drain; it is killed", process.name)
            process.kill()
        await self._until(lambda: not self.processes, GRACE_S)
        if self._feed is not None:
            await self._feed.end(GRACE_S)

    async def _start(self, slot: Slot) -> Process:
        slot.tasks = [task for task in slot.tasks if not task.done()]
        row = self._free_row()
        if row is None:
            raise OSError("too many of those that leave are still there")
        self._board.raise_row(row)
        process = Process(f"worker {slot.number + 1}", self._hear)

        def give(line: int) -> RouterOrders:
            sockets = [[each.fileno() for each in slot.sockets] for slot in self._slots]
            common = (self.settings, self._board.descriptor, line, self._feed_address)
            return RouterOrders(*common, slot.number, row, sockets, self._wakers)

        passed = [each.fileno() for slot in self._slots for each in slot.sockets]
        try:
            await process.start("worker", give, [self._board.descriptor, *self._wakers, *passed])
        except BaseException:
            self._board.bury_row(row)
            raise
        self.processes[process] = row
        slot.tasks.append(self._group.create_task(self._reap(slot, process)))
        return process

    def _free_row(self) -> int | None:
        return next((row for row in range(self._board.num_rows) if not self._board.is_live(row)), None)

    async def _reap(self, slot: Slot, process: Process) -> None:
        began = asyncio.get_running_loop().time()
        how = await process.death()
        self._bury(process)
        if self.is_stopping or process.is_leaving or slot.process is not process:
            return
        slot.process = None
        self.num_deaths += 1
        log.warning("%s (pid %s) died (%s); starting it again", process.name, process.pid, how)
        if not self._has_served and self.num_deaths >= MOST_EARLY_DEATHS:
            self._is_hopeless.set()
        self._lend(slot)
        lived_s = asyncio.get_running_loop().time() - began
        await self._revive(slot, FIRST_BACKOFF_S if lived_s > LONG_LIFE_S else slot.backoff_s)

    async def _revive(self, slot: Slot, backoff_s: float) -> None:
        """Fill an empty slot, later each time; who replaces all fills it as well."""
        slot.backoff_s = backoff_s
        while not await self._stops_within(slot.backoff_s) and slot.process is None and not slot.is_rolling:
            slot.backoff_s = min(2 * slot.backoff_s, MOST_BACKOFF_S)
            try:
                slot.process = await self._start(slot)
            except OSError as error:
                log.error("worker %d cannot be started: %s", slot.number + 1, error)

    async def _stops_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        return self.is_stopping

    def _bury(self, process: Process) -> None:
        """In one step, so that no count is missing or doubled in between."""
        self._board.bury_row(self.processes.pop(process))
        if process.report is not None:
            self.departed.add(process.report.families, only_counted=True)
        self._relend(process)
        self._news.set()

    async def _replace(self, slot: Slot) -> None:
        if self.is_stopping:
            return
        try:
            new, old = await self._start(slot), slot.process
        except OSError as error:
            raise RestartFailed(f"a new worker {slot.number + 1} cannot be started: {error}") from None
        await self._until(lambda: new.is_serving.is_set() or new not in self.processes, SERVING_TIMEOUT_S)
        if not new.is_serving.is_set():
            new.is_leaving = True
            new.kill()
            raise RestartFailed(
                f"{new.name} did not come to serve within {SERVING_TIMEOUT_S:g} s; the old one goes on."
            )
        slot.process = new
        self._take_back(slot)
        if old is None or old not in self.processes:
            return
        old.is_leaving = True
        old.tell(Retire())
        self._relend(old)

    # a slot without a worker

    def _lend(self, slot: Slot) -> None:
        """Have a sibling take its connections, those included that wait already."""
        helpers = [other.process for other in self._slots if other is not slot and other.process is not None]
        slot.helper = next((process for process in helpers if process.is_serving.is_set()), None)
        if slot.helper is not None:
            slot.helper.tell(Open(slot.number))

    def _relend(self, helper: Process) -> None:
        """This one helps no more."""
        for slot in self._slots:
            if slot.helper is helper:
                self._lend(slot)

    def _take_back(self, slot: Slot) -> None:
        if slot.helper is not None:
            slot.helper.tell(Shut(slot.number))
            slot.helper = None

    # the feed, and what is heard

    async def _keep_feed(self) -> None:
        backoff_s = FIRST_BACKOFF_S
        while not self.is_stopping:
            feed = Process("the feed", self._hear)

            def give(line: int) -> FeedOrders:
                common = (self.settings, self._board.descriptor, line, self._feed_address)
                return FeedOrders(*common, self._listener.fileno(), sorted(self._drained))

            await feed.start("feed", give, [self._board.descriptor, self._listener.fileno()])
            self._feed, began = feed, asyncio.get_running_loop().time()
            how = await feed.death()
            if self.is_stopping:
                return
            log.warning("the feed (pid %s) died (%s); starting it again, workers go on as they are", feed.pid, how)
            lived_s = asyncio.get_running_loop().time() - began
            backoff_s = FIRST_BACKOFF_S if lived_s > LONG_LIFE_S else min(2 * backoff_s, MOST_BACKOFF_S)
            await asyncio.sleep(backoff_s)

    def _tell(self, question: Question) -> bool:
        """A worker, of what it would decide; else the feed."""
        process = self._feed
        if isinstance(question, Explain):
            process = next((each for each in self.processes if each.is_serving.is_set()), None)
        if process is not None:
            process.tell(question)
        return process is not None

    def _hear(self, process: Process, news: News) -> None:
        if isinstance(news, Drained):
            self._answers.put_nowait(news)
        elif isinstance(news, Found | Exported | Explained):
            self.questions.heard(news)
        elif isinstance(news, Serving):
            process.is_serving.set()
            for slot in self._slots:
                if slot.process is process:
                    self._take_back(slot)
        self._news.set()

    async def _until(self, condition: Callable[[], bool], timeout_s: float = ASK_TIMEOUT_S) -> None:
        """Return when it is so, or time is up; looked at after each word of a process, and now and then."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    self._news.clear()
                    try:
                        async with asyncio.timeout(0.02):
                            await self._news.wait()
                    except TimeoutError:
                        continue
        except TimeoutError:
            return

    def _close(self) -> None:
        for each in (self._listener, *(each for slot in self._slots for each in slot.sockets)):
            each.close()
        for descriptor in self._wakers:
            os.close(descriptor)
        self._board.close()

    def __repr__(self) -> str:
        return f"<Supervisor {self.num_serving} of {len(self._slots)} workers serve>"
