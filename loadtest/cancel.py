"""Measures how soon engines are idle after a client has gone. Knows two gauges of /metrics and when to hang up.

A request is closed before its first token, once an engine shows it, and in mid-stream, after its first token. The
clock starts at the close and stops when no engine runs or queues a request, and again when the KV blocks are back.
"""

import asyncio
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum

from loadtest.answer import Answer
from loadtest.client import Client, choose_model, connect
from loadtest.errors import LoadError
from loadtest.settings import CancelSettings
from loadtest.summary import Spread, spread
from loadtest.wire import Ask, Message, wire
from loadtest.workload import Piece, text_of

_POLL_S = 0.002
_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
_KV_USED = "vllm:kv_cache_usage_perc"
_TRIES_PER_SAMPLE = 5


class Phase(Enum):
    """When the connection is closed; the value is its name in the table."""

    BEFORE_FIRST_TOKEN = "before the first token"
    MID_STREAM = "in mid-stream"


@dataclass(frozen=True, slots=True)
class Load:
    """All engines together: requests running or queued, and the sum of the used shares of their KV caches."""

    num_requests: float
    kv_used_ratio: float | None


@dataclass(frozen=True, slots=True)
class Release:
    """One cancel: seconds from the close until no request ran, and until the KV blocks were back (None: no gauge)."""

    idle_s: float
    kv_back_s: float | None


@dataclass(frozen=True, slots=True)
class PhaseResult:
    """All cancels of a phase; `num_missed` answers began, or ended, before they could be closed in it."""

    phase: str
    num_missed: int
    idle_s: Spread | None
    kv_back_s: Spread | None


@dataclass(frozen=True, slots=True)
class CancelSummary:
    """What `pointsman-load cancel` found; `poll_s` is the time between looks, the resolution of all times."""

    model: str
    phases: tuple[PhaseResult, ...]
    poll_s: Spread | None


async def measure_cancels(settings: CancelSettings) -> CancelSummary:
    """Measure all phases. Raises LoadError when the server cannot be used or does not become idle."""
    async with connect(settings.url, settings.api_key, settings.timeout_s) as client:
        model = choose_model(settings.model, await client.models())
        urls = tuple(url.rstrip("/").removesuffix("/v1") for url in settings.engine_url) or (client.url,)
        trial = Trial(client, Engines(client, urls), settings, model)
        results = tuple([await trial.measure(phase) for phase in Phase])
        return CancelSummary(model, results, spread(trial.engines.polls_s))


@dataclass(eq=False, slots=True)
class Engines:
    """The /metrics pages of the engines behind the server."""

    client: Client
    urls: tuple[str, ...]
    polls_s: list[float] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<Engines {len(self.urls)} after {len(self.polls_s)} polls>"

    async def load(self) -> Load:
        """Look at all engines once; raises LoadError that names --engine-url."""
        pages = await asyncio.gather(*(self._page(url) for url in self.urls))
        ratios = [ratio for page in pages if (ratio := gauge(page, _KV_USED)) is not None]
        num_requests = sum((gauge(page, _RUNNING) or 0) + (gauge(page, _WAITING) or 0) for page in pages)
        return Load(num_requests, sum(ratios) if len(ratios) == len(pages) else None)

    async def until(self, is_reached: Callable[[Load], bool], timeout_s: float, wish: str) -> Load:
        """Poll until the load is as wished; raises LoadError that says what it was instead."""
        deadline_s = time.perf_counter() + timeout_s
        while True:
            looked_s = time.perf_counter()
            load = await self.load()
            if is_reached(load):
                return load
            if time.perf_counter() > deadline_s:
                shown = f"{load.num_requests:g} requests, KV use {load.kv_used_ratio}"
                raise LoadError(f"--engine-url: not {wish} within {timeout_s:g} s; the engines show {shown}")
            await asyncio.sleep(_POLL_S)
            self.polls_s.append(time.perf_counter() - looked_s)

    async def _page(self, url: str) -> str:
        status, body = await self.client.get(f"{url}/metrics", "--engine-url")
        page = body.decode("utf-8", "replace")
        if status != 200 or gauge(page, _RUNNING) is None:
            found = f"answered {status}" if status != 200 else f"has no {_RUNNING}"
            raise LoadError(f"--engine-url: {url}/metrics {found}; name the engines behind the server")
        return page


@dataclass(eq=False, slots=True)
class Trial:
    """Cancels on one server, one at a time."""

    client: Client
    engines: Engines
    settings: CancelSettings
    model: str
    num_asked: int = 0

    def __repr__(self) -> str:
        return f"<Trial {self.model} {self.num_asked} asked>"

    async def measure(self, phase: Phase) -> PhaseResult:
        """Measure the wanted number of cancels in one phase; raises LoadError when too few can be made."""
        releases: list[Release] = []
        num_missed = 0
        while len(releases) < self.settings.samples:
            idle = await self._until_idle("idle before the next cancel")
            closed_s = await self._hang_up(phase)
            if closed_s is not None:
                releases.append(await self._watch_release(idle, closed_s))
            elif (num_missed := num_missed + 1) > _TRIES_PER_SAMPLE * self.settings.samples:
                longer = "--input-tokens" if phase is Phase.BEFORE_FIRST_TOKEN else "--output-tokens"
                raise LoadError(f"{longer}: answers came too soon to be closed {phase.value}; ask for more")
        kv_back = spread(release.kv_back_s for release in releases)
        return PhaseResult(phase.value, num_missed, spread(release.idle_s for release in releases), kv_back)

    async def _hang_up(self, phase: Phase) -> float | None:
        """Send a request, close its connection in the phase; return when, or None if the phase was over too soon."""
        if phase is Phase.BEFORE_FIRST_TOKEN:
            return await self._hang_up_when_shown()
        answer = _checked(await self.client.ask_and_leave(self._ask()))
        return None if answer.is_done else answer.first_token_s

    async def _hang_up_when_shown(self) -> float | None:
        reader = asyncio.create_task(self.client.ask_and_leave(self._ask()))
        try:
            await self.engines.until(
                lambda load: load.num_requests > 0 or reader.done(), self.settings.timeout_s, "busy with the request"
            )
            closed_s = time.perf_counter()
        finally:
            reader.cancel()
            await asyncio.wait((reader,))
        if reader.cancelled():
            return closed_s
        _checked(reader.result())
        return None

    async def _watch_release(self, before: Load, closed_s: float) -> Release:
        await self._until_idle("idle after the close: the cancel has not reached the engine")
        idle_s = time.perf_counter() - closed_s
        used_before = before.kv_used_ratio
        if used_before is None:
            return Release(idle_s, None)
        await self.engines.until(
            lambda load: load.kv_used_ratio is not None and load.kv_used_ratio <= used_before,
            self.settings.timeout_s,
            "back at the KV use before the request",
        )
        return Release(idle_s, time.perf_counter() - closed_s)

    async def _until_idle(self, wish: str) -> Load:
        return await self.engines.until(lambda load: load.num_requests == 0, self.settings.timeout_s, wish)

    def _ask(self) -> Ask:
        self.num_asked += 1
        text = text_of((Piece(f"{self.settings.seed}/cancel/{self.num_asked}", self.settings.input_tokens),))
        return wire(self.settings, self.model).ask((Message("user", text),), self.settings.output_tokens)


def _checked(answer: Answer) -> Answer:
    if answer.failure is not None:
        raise LoadError(f"--url: {answer.failure.label}: {answer.failure.message}")
    return answer


def gauge(page: str, name: str) -> float | None:
    """The sum of a gauge's series on a Prometheus page; None when it is not there."""
    values = re.findall(rf"^{re.escape(name)}(?:\{{[^\n]*\}})? (\S+)", page, re.MULTILINE)
    with suppress(ValueError):
        return sum(map(float, values)) if values else None
    return None
