"""One gRPC call as one request of the proxy: its metadata, its deadline, its cancel, and how it fails.

Knows calls and the outbox; knows nothing of what requests and answers say beyond errors.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from router.core import Headers, Request, Surface
from router.errors import PointsmanError
from router.headers import find
from router.ports import Clock, Reply
from router.transports import chunks
from router.transports.asking import new_request
from router.transports.chunks import Chunk, Events
from router.transports.grpc import failures
from router.transports.grpc.failures import CallFailed
from router.transports.outbox import Outbox

Begin = Callable[[Request, Reply], object]
Context = grpc.aio.ServicerContext[Any, Any]

# What an answer says of itself in metadata.
_TOLD = ("x-request-id", "x-pointsman-replica", "x-pointsman-reason")
# Metadata of the transport itself, which no request has as headers.
_OF_TRANSPORT = ("grpc-", ":")
_NOT_PASSED = frozenset(("user-agent", "content-type", "te", "content-length"))


@dataclass(eq=False, slots=True)
class Calls:
    """Serves calls through `begin`; a call may take `timeout_s` at most. `open` counts them."""

    begin: Begin
    clock: Clock
    timeout_s: float
    open: int = 0

    @asynccontextmanager
    async def answer(
        self, context: Context, surface: Surface, body: bytes, more: Headers = ()
    ) -> AsyncIterator[tuple[str, Outbox]]:
        """The request's id and its answer; `more` headers than the call's. Whoever leaves the block early has cancelled
        the request."""
        request, outbox = self._request(context, surface, body, more), Outbox()
        self.begin(request, outbox)
        self.open += 1
        try:
            yield request.id, outbox
        finally:
            self.open -= 1
            outbox.leave()

    async def events(self, context: Context | None, outbox: Outbox) -> AsyncIterator[Chunk]:
        """The chunks of a stream, up to its [DONE]; `context`'s metadata tell of it. Raises CallFailed."""
        await _open(context, outbox)
        events = Events()
        while (payload := await outbox.read()) is not None:
            if context is not None:
                _trail(context, events.comments(payload))
            for found in events.feed(payload):
                if found == chunks.DONE:
                    outbox.let_end()  # some replicas end their answer a moment later: they are not cut off
                    return
                chunk = chunks.decode(found)
                if (failure := chunk.failure) is not None:
                    raise failures.of_event(failure)
                yield chunk
        raise failures.of_cut(outbox.outcome)

    async def whole(self, context: Context, outbox: Outbox) -> Chunk:
        """The whole answer. Raises CallFailed."""
        await _open(context, outbox)
        body = await _rest(outbox)
        if not outbox.is_complete:
            raise failures.of_cut(outbox.outcome)
        return chunks.decode(body)

    def _request(self, context: Context, surface: Surface, body: bytes, more: Headers) -> Request:
        now = self.clock()
        left_s = context.time_remaining()
        limit_s = self.timeout_s if left_s is None else min(self.timeout_s, left_s)
        return new_request(surface, body, (*headers_of(context), *more), now, now + limit_s)


@asynccontextmanager
async def ending(context: Context) -> AsyncIterator[None]:
    """A call that fails inside ends with its status and details."""
    try:
        yield
        return
    except CallFailed as error:
        failed = error
    except PointsmanError as error:
        failed = failures.of_error(error)
    words = failed.message[: failures.MAX_MESSAGE_CHARS]
    await context.abort(failed.status, words, (*_trailers(context), *failed.trailers))


def headers_of(context: Context) -> Headers:
    """A call's metadata as a request's headers; what is binary or the transport's own is left out."""
    found = []
    for name, value in context.invocation_metadata() or ():
        if isinstance(value, bytes) or name.startswith(_OF_TRANSPORT) or name in _NOT_PASSED:
            continue
        found.append((name, value))
    return tuple(found)


async def _open(context: Context | None, outbox: Outbox) -> None:
    """Send what the head says of the answer. Raises CallFailed where it is an error."""
    status = await outbox.opened()
    if not status:
        raise failures.of_cut(outbox.outcome)
    if context is not None:
        await context.send_initial_metadata(tuple(pair for pair in outbox.headers if pair[0] in _TOLD))
    if status >= 400:
        body = await _rest(outbox)
        raise failures.of_answer(status, _failure(body), find(outbox.headers, "retry-after"))


async def _rest(outbox: Outbox) -> bytes:
    pieces = []
    while (payload := await outbox.read()) is not None:
        pieces.append(payload)
    return b"".join(pieces)


def _failure(body: bytes) -> chunks.Failure:
    try:
        return chunks.decode(body).failure or chunks.Failure(message=body.decode("utf-8", "replace"))
    except PointsmanError:
        return chunks.Failure(message=body.decode("utf-8", "replace"))


def _trail(context: Context, comments: list[str]) -> None:
    """A stream that had to wait says in comments who answers it: its head was sent before that was known."""
    found = tuple((name, value) for name, _, value in (each.partition(": ") for each in comments) if name in _TOLD)
    if found:
        context.set_trailing_metadata((*_trailers(context), *found))


def _trailers(context: Context) -> tuple[tuple[str, str | bytes], ...]:
    return tuple(context.trailing_metadata() or ())
