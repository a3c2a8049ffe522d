"""Runs the choices of one request and writes their answer, whole or as a stream of events.

Knows aiohttp's responses, the engine's loop and how choices of one prompt go together. Must not know how requests
are checked or answers shaped.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from engine.loop import EngineError, EngineLoop
from engine.sequence import Output, Request
from engine.server.answers import DONE, Choice, Head, usage
from engine.server.errors import ApiError, bad_request
from engine.server.handover import Handover
from engine.server.side_by_side import side_by_side
from engine.structure import Structure
from engine.text import TextStream

_STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


@dataclass(frozen=True, slots=True)
class Run:
    """One choice and what computes it."""

    choice: Choice
    request: Request
    text: TextStream
    structure: Structure | None = None


@dataclass(frozen=True, slots=True)
class Generation:
    """`prompts` has the runs of each prompt, equally many."""

    head: Head
    prompts: Sequence[Sequence[Run]]
    wants_usage: bool = False
    handover: Handover | None = None

    async def stream(self, http: web.Request, engine: EngineLoop) -> web.StreamResponse:
        """Raises ApiError for what fails before the first token; what fails later is told in the stream."""
        events = _Events(http, self.head)
        try:
            more = await self._run(engine, events.take)
            if self.wants_usage:
                more["usage"] = self._usage()
            closing = self.head.event([], **more) if more else b""
            await events.write(closing + DONE)
        except (EngineError, ApiError) as error:
            told = translate(error) if isinstance(error, EngineError) else error
            if not events.response.prepared:
                raise told from None
            await events.write(b"data: " + told.body() + b"\n\n" + DONE)
        await events.response.write_eof()
        return events.response

    async def whole(self, engine: EngineLoop) -> web.Response:
        """Raises ApiError."""

        async def take(run: Run, output: Output) -> None:
            run.choice.take(output)

        try:
            more = await self._run(engine, take)
        except EngineError as error:
            raise translate(error) from None
        choices = [run.choice.whole() for runs in self.prompts for run in runs]
        return web.Response(body=self.head.whole(choices, self._usage(), **more), content_type="application/json")

    async def _run(self, engine: EngineLoop, take: "_Take") -> dict[str, Any]:
        """What the answer says beside its choices."""
        if self.handover is None:
            await self._follow_all(engine, take)
            return {}
        await self.handover.before()
        await self._follow_all(engine, take)
        return await self.handover.after()

    async def _follow_all(self, engine: EngineLoop, take: "_Take") -> None:
        if len(self.prompts) == len(self.prompts[0]) == 1:
            await _follow(engine, self.prompts[0][0], take)
            return
        following = []
        for runs in self.prompts:
            is_computed = asyncio.Event()
            following.append(_follow(engine, runs[0], take, then=is_computed))
            following += [_follow(engine, run, take, after=is_computed) for run in runs[1:]]
        await side_by_side(following)

    def _usage(self) -> dict[str, object]:
        sizes = [len(runs[0].request.prompt) for runs in self.prompts]
        return usage(sizes, [run.choice for runs in self.prompts for run in runs])


_Take = Callable[[Run, Output], Awaitable[None]]


async def _follow(
    engine: EngineLoop,
    run: Run,
    take: _Take,
    *,
    after: asyncio.Event | None = None,
    then: asyncio.Event | None = None,
) -> None:
    """The first run of a prompt computes its KV, so the others wait for its first token: they find it cached."""
    if after is not None:
        await after.wait()
    try:
        outputs = engine.submit(run.request, run.text, run.structure)
    except ValueError as error:
        raise bad_request(str(error)) from None
    with outputs:
        async for output in outputs:
            if then is not None:
                then.set()
            await take(run, output)


@dataclass(eq=False, slots=True)
class _Events:
    """The head goes out with the first event, so that a failure before it still has its own status."""

    http: web.Request
    head: Head
    response: web.StreamResponse = field(default_factory=lambda: web.StreamResponse(headers=_STREAM_HEADERS))
    # Choices run side by side, and only one of them may send the head.
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def take(self, run: Run, output: Output) -> None:
        events = b"".join(self.head.event([choice]) for choice in run.choice.deltas(output))
        if events:
            await self.write(events)

    async def write(self, events: bytes) -> None:
        async with self._turn:
            if not self.response.prepared:
                await self.response.prepare(self.http)
            await self.response.write(events)


def translate(error: EngineError) -> ApiError:
    """As a client is told of it."""
    if error.field is not None:
        return bad_request(f"{error.field}: {error}", error.field)
    return ApiError(503 if error.is_stopped else 500, str(error))
