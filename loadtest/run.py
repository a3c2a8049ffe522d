"""Drives a run: who sends what when. Knows open and closed loops; knows nothing of bytes, texts or statistics.

Open loop: conversations begin at their arrival times, whatever the server does; within one, the next turn follows
the answer. Closed loop: a fixed number of users, each with one request in flight.
"""

import asyncio
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from loadtest.client import Client, choose_model, connect
from loadtest.progress import Counts, show_progress
from loadtest.sample import Measured, Sample
from loadtest.settings import RunSettings
from loadtest.trace import Trace
from loadtest.wire import Message, Wire, wire
from loadtest.workload import Conversation, conversations, text_of

_LAG_TICK_S = 0.02
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


async def measure(settings: RunSettings, trace: Trace | None) -> Measured:
    """Run to the end, or to the first SIGINT or SIGTERM; raises LoadError when the server cannot be used."""
    async with connect(settings.url, settings.api_key, settings.timeout_s) as client:
        model = choose_model(settings.model, await client.models())
        run = Run(client, wire(settings, model, settings.stream), settings)
        await run.go(conversations(settings, trace), settings.num_planned(len(trace.rows) if trace else None))
        return run.measured()


@dataclass(eq=False, slots=True)
class Run:
    """A run in progress."""

    client: Client
    wire: Wire
    settings: RunSettings
    samples: list[Sample] = field(default_factory=list)
    num_failed: int = 0
    num_in_flight: int = 0
    num_unfinished: int = 0
    lag_s: float = 0.0
    is_interrupted: bool = False
    started_s: float = 0.0
    ended_s: float = 0.0

    def __repr__(self) -> str:
        return f"<Run {len(self.samples)} done {self.num_failed} failed {self.num_in_flight} in flight>"

    async def go(self, plan: Iterator[Conversation], num_planned: int | None) -> None:
        """Send the plan; the lag meter and the progress display live as long as the driver."""
        self.started_s = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            driver = tasks.create_task(self._drive(plan))
            watchers = [tasks.create_task(self._watch_lag())]
            if not self.settings.quiet:
                shown = show_progress(self._counts, num_planned, self.settings.duration_s)
                watchers.append(tasks.create_task(shown))
            self._handle_signals(driver)
            await asyncio.wait([driver])
            for watcher in watchers:
                watcher.cancel()
        self.ended_s = time.perf_counter()

    def measured(self) -> Measured:
        """The finished run, frozen."""
        return Measured(
            self.wire.model,
            tuple(self.samples),
            self.started_s,
            self.ended_s,
            self.num_unfinished,
            self.lag_s,
            self.is_interrupted,
        )

    async def _drive(self, plan: Iterator[Conversation]) -> None:
        if self.settings.concurrency is None:
            await self._open_loop(plan)
        else:
            async with asyncio.TaskGroup() as users:
                for _ in range(self.settings.concurrency):
                    users.create_task(self._use(plan))

    async def _open_loop(self, plan: Iterator[Conversation]) -> None:
        async with asyncio.TaskGroup() as talks:
            for conversation in plan:
                due_s = self.started_s + (conversation.at_s or 0.0)
                if self._is_over(due_s):
                    return
                await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
                self._note_lag(due_s)
                talks.create_task(self._talk(conversation))

    async def _use(self, plan: Iterator[Conversation]) -> None:
        for conversation in plan:
            if self._is_over(time.perf_counter()):
                return
            await self._talk(conversation)

    async def _talk(self, conversation: Conversation) -> None:
        """Send the turns in order. A failed turn leaves no mark in the history, and the talk goes on."""
        opening = text_of(conversation.system)
        history = (Message("system", opening),) if opening else ()
        for turn in conversation.turns:
            if self._is_over(time.perf_counter()):
                return
            asked = (*history, Message("user", text_of(turn.pieces)))
            sample, text = await self._send(asked, turn.max_tokens, conversation.user)
            if sample.failure is None:
                history = (*asked, Message("assistant", text))

    async def _send(self, history: tuple[Message, ...], max_tokens: int, user: str | None) -> tuple[Sample, str]:
        ask = self.wire.ask(history, max_tokens, user)
        self.num_in_flight += 1
        try:
            sample, text = await self.client.ask(ask)
        except asyncio.CancelledError:
            self.num_unfinished += 1
            raise
        finally:
            self.num_in_flight -= 1
        self.samples.append(sample)
        self.num_failed += sample.failure is not None
        return sample, text

    def _is_over(self, when_s: float) -> bool:
        duration_s = self.settings.duration_s
        return duration_s is not None and when_s >= self.started_s + duration_s

    async def _watch_lag(self) -> None:
        while True:
            due_s = time.perf_counter() + _LAG_TICK_S
            await asyncio.sleep(_LAG_TICK_S)
            self._note_lag(due_s)

    def _note_lag(self, due_s: float) -> None:
        self.lag_s = max(self.lag_s, time.perf_counter() - due_s)

    def _counts(self) -> Counts:
        elapsed_s = time.perf_counter() - self.started_s
        return Counts(len(self.samples), self.num_failed, self.num_in_flight, elapsed_s)

    def _handle_signals(self, driver: "asyncio.Task[None]") -> None:
        def interrupt() -> None:
            self.is_interrupted = True
            driver.cancel()

        def restore(_: object) -> None:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, interrupt)
        driver.add_done_callback(restore)
