"""A process of ours as the supervisor has it: started with orders, spoken to by a line, ended for sure. Knows
descriptors and signals; when to start which is the supervisor's matter.
"""

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from router.workers import orders
from router.workers.frames import News, Order, Report, news
from router.workers.line import Line
from router.workers.orders import FeedOrders, RouterOrders

# What a process may take beyond its own drain.
GRACE_S = 3.0


@dataclass(eq=False, slots=True)
class Process:
    """`name` is for people. `is_serving` is set by its word; `report` is its last one."""

    name: str
    on_news: Callable[["Process", News], None]
    is_serving: asyncio.Event = field(default_factory=asyncio.Event)
    is_leaving: bool = False
    report: Report | None = None
    num_reports: int = 0
    _process: asyncio.subprocess.Process | None = None
    _line: Line | None = None
    _ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self, kind: str, give: Callable[[int], RouterOrders | FeedOrders], passed: Sequence[int]) -> None:
        """`give(line)` are its orders, `passed` the descriptors that they name."""
        ours, theirs = socket.socketpair()
        line = Line(self._hear, lambda _: self._ended.set())
        await asyncio.get_running_loop().create_connection(lambda: line, sock=ours)
        self._line = line
        document = orders.write(give(theirs.fileno()))
        try:
            # Executed, not forked: gRPC does not live through a fork. Its own session: a Ctrl-C in the terminal is the
            # supervisor's to pass on.
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "router", kind, str(document)),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=[document, theirs.fileno(), *passed],
                start_new_session=True,
            )
        finally:
            os.close(document)
            theirs.close()

    def tell(self, order: Order) -> None:
        if self._line is not None:
            self._line.send(order)

    async def death(self) -> str:
        """How it ended, once it has and its last report is read."""
        assert self._process is not None
        code = await self._process.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                await self._ended.wait()
        return f"signal {-code}" if code < 0 else f"exit status {code}"

    def leave(self) -> None:
        """The end of its line tells it to drain and go."""
        self.is_leaving = True
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.terminate()

    async def end(self, timeout_s: float) -> None:
        """Ask it to leave, and kill it where it does not."""
        self.leave()
        try:
            async with asyncio.timeout(timeout_s):
                await self.death()
        except TimeoutError:
            self.kill()
            await self.death()

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()

    def _hear(self, _: Line, payload: bytes) -> None:
        message = news.decode(payload)
        if isinstance(message, Report):
            self.report = message
            self.num_reports += 1
        self.on_news(self, message)

    def __repr__(self) -> str:
        state = "leaving" if self.is_leaving else "serving" if self.is_serving.is_set() else "starting"
        return f"<Process {self.name} pid {self.pid} {state}>"
