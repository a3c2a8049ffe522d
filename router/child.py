"""A process that the supervisor started: one of several routers, or the feed. Knows its orders and its line to the
supervisor; what a router or a feed does is theirs.

It ends with its supervisor, however that ends: the line is a socket pair, and its end is an order to drain and leave.
"""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator

import uvloop

from router import pages
from router.app import Router
from router.errors import PointsmanError
from router.explaining import explainer
from router.openai import error_body
from router.telemetry.logs import open_log
from router.transports.http import ClientConnection, DataPort
from router.workers import doors, frames, orders
from router.workers.board import Board
from router.workers.desk import Desk
from router.workers.feed import Feed
from router.workers.frames import (
    Ask,
    Drain,
    Explain,
    Explained,
    Export,
    Find,
    Open,
    Order,
    Recall,
    Retire,
    Serving,
    Shut,
)
from router.workers.line import Line
from router.workers.mirror import Mirror
from router.workers.orders import FeedOrders, RouterOrders
from router.workers.sharing import Sharing

REPORT_INTERVAL_S = 1.0
SETTLE_TIMEOUT_S = 5.0
_POLL_S = 0.02


def run_router(descriptor: int) -> int:
    """`python -m router worker DESCRIPTOR`: serve until told to leave."""
    uvloop.run(_ChildRouter(orders.read_for_router(descriptor)).run())
    return 0


def run_feed(descriptor: int) -> int:
    """`python -m router feed DESCRIPTOR`."""
    uvloop.run(_run_feed(orders.read_for_feed(descriptor)))
    return 0


class _ChildRouter:
    """A Router on passed sockets, told of replicas by the feed and of its end by the supervisor."""

    def __init__(self, given: RouterOrders) -> None:
        self._given = given
        self._stop = asyncio.Event()
        self._is_retired = asyncio.Event()
        self._servers: dict[int, list[asyncio.Server]] = {}
        self._line = Line(self._hear, lambda _: self._stop.set())
        self._orders: asyncio.Queue[Order] = asyncio.Queue()
        desk = Desk(Board.attach(given.board), given.row)
        self._sharing = Sharing(desk, given.row, given.feed_address, given.wakers)
        self._router = Router(given.settings, open_log(given.settings.log_level), self._sharing)
        self._mirror = Mirror(self._router.registry, desk, self._router.caches, on_lessons=self._router.learning.heard)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        await loop.create_connection(lambda: self._line, sock=socket.socket(fileno=self._given.line))
        waker = self._given.wakers[self._given.row]
        loop.add_reader(waker, self._wake, waker)
        await self._router.run_with(self._stop, lambda: None, self._listen, self._watch)
        self._report()  # the last word counts
        self._line.close()

    @contextlib.asynccontextmanager
    async def _listen(self, port: DataPort) -> AsyncIterator[None]:
        """The port's sockets are opened when replicas are known, and at the supervisor's word."""
        self._port = port
        try:
            yield
        finally:
            for slot in list(self._servers):
                self._shut(slot)

    async def _watch(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._sharing.follow(self._mirror.apply))
            group.create_task(self._router.registry.run_told())
            group.create_task(self._report_forever())
            group.create_task(self._leave_when_retired())
            await self._know_replicas()
            await self._open(self._given.slot)
            self._line.send(Serving())
            await self._obey()

    async def _know_replicas(self) -> None:
        """So that who comes first waits for nothing that our siblings know already; but a replica that hangs, or a
        tokenizer that is slow to load, holds up no start."""
        await self._mirror.has_snapshot.wait()
        loop = asyncio.get_running_loop()
        until = loop.time() + SETTLE_TIMEOUT_S
        while loop.time() < until and (not self._mirror.is_settled or self._router.is_loading):  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)

    async def _obey(self) -> None:
        while True:
            match order := await self._orders.get():
                case Open(slot):
                    await self._open(slot)
                case Shut(slot):
                    self._shut(slot)
                case Retire():
                    self._retire()
                case Explain():
                    await self._explain(order)

    def _hear(self, _: Line, payload: bytes) -> None:
        order = frames.order.decode(payload)
        if isinstance(order, Ask):
            self._report()
        else:
            self._orders.put_nowait(order)

    async def _open(self, slot: int) -> None:
        if slot in self._servers:
            return
        loop, port = asyncio.get_running_loop(), self._port
        self._servers[slot] = [
            await loop.create_server(lambda: ClientConnection(port), sock=opened, backlog=doors.BACKLOG)
            for opened in (socket.socket(fileno=os.dup(descriptor)) for descriptor in self._given.sockets[slot])
        ]

    def _shut(self, slot: int) -> None:
        """The socket stays open in other processes, and who waits in it stays."""
        for server in self._servers.pop(slot, []):
            server.close()

    def _retire(self) -> None:
        for slot in list(self._servers):
            self._shut(slot)
        self._router.retire()
        self._is_retired.set()

    async def _leave_when_retired(self) -> None:
        """Nobody waits for us: whatever is open may take as long as any request may."""
        await self._is_retired.wait()
        loop = asyncio.get_running_loop()
        until = loop.time() + self._given.settings.request_timeout_s
        while loop.time() < until and not self._router.is_deserted:  # noqa: ASYNC110  (clients come and go)
            await asyncio.sleep(_POLL_S)
        self._router.drain_timeout_s = 0.0
        self._stop.set()

    async def _explain(self, asked: Explain) -> None:
        try:
            status, answer = await explainer(self._router)(asked.body, asked.headers)
        except Exception:  # a question must not end the process
            self._router.logger.exception("a decision could not be explained")
            status, answer = 500, error_body(PointsmanError("The worker failed to explain this."))
        self._line.send(Explained(asked.number, status, answer))

    def _wake(self, waker: int) -> None:
        """A sibling has freed a place that we may have waited for."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(waker)
        self._router.queue.pump()

    async def _report_forever(self) -> None:
        """So that little is lost with a process that is killed."""
        while True:
            await asyncio.sleep(REPORT_INTERVAL_S)
            self._report()

    def _report(self) -> None:
        self._line.send(pages.report(self._router))


async def _run_feed(given: FeedOrders) -> None:
    """The feed needs no drain: workers keep what it told them."""
    open_log(given.settings.log_level)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    feed = Feed(given.settings, Board.attach(given.board), socket.socket(fileno=given.listener), given.drained)

    def hear(line: Line, payload: bytes) -> None:
        order = frames.order.decode(payload)
        if isinstance(order, Drain):
            feed.drain(order, line)
        elif isinstance(order, Find):
            feed.find(order, line)
        elif isinstance(order, Export):
            feed.export(order, line)
        elif isinstance(order, Recall):
            feed.recall(order, line)

    line = Line(hear, lambda _: stop.set())
    await loop.create_connection(lambda: line, sock=socket.socket(fileno=given.line))
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(feed.run())
        await stop.wait()
        watching.cancel()
