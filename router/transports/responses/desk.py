"""Requests of OpenAI's Responses API from their bytes to their end, whatever transport they came by. Knows the order of
steps; what a response is kept as, how it goes on without its client and how it is followed are the files beside it.

A response is stored before its end is told: who follows it, wherever, finds it. While Redis is away requests are served
all the same, and say `"store": false`; what cannot do without it answers 503.
"""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from router.core import Headers, Outcome, Request
from router.errand import own_task
from router.errors import PointsmanError
from router.headers import EARLY_STREAM, JSON, request_id
from router.ports import Clock, Reply
from router.transports.dialects import responses_ask
from router.transports.dialects.responses_ask import Asked
from router.transports.dialects.responses_tell import ResponseTeller
from router.transports.dialects.translating import TranslatingReply
from router.transports.leaving import Leaving, Valve
from router.transports.responses.following import Following, sse, sse_failure
from router.transports.responses.here import AnyArchive
from router.transports.responses.patience import patiently
from router.transports.responses.recent import Recent
from router.transports.responses.replies import Held
from router.transports.responses.runs import CLIENT_S, Begin, Runs
from router.transports.responses.states import (
    MAX_RECORD_BYTES,
    SAID,
    Kept,
    ResponsesAway,
    TooLongToStore,
    UnknownPrevious,
    UnknownResponse,
)
from router.transports.responses.turn import Messages, Turn, last_of


@dataclass(eq=False, slots=True)
class ResponseDesk:
    """`owner_of` tells whose responses a client's are, and raises for who may ask nothing; a request takes `timeout_s`
    at most."""

    begin: Begin
    archive: AnyArchive
    runs: Runs
    following: Following
    clock: Clock
    owner_of: Callable[[Headers], str]

    async def respond(
        self, headers: Headers, body: bytes, reply: Reply, leaving: Leaving, recent: Recent | None
    ) -> None:
        """Answer one request on `reply`; `leaving` stops this. `recent` is what the client's connection remembers.

        Raises PointsmanError before there is a head."""
        owner, asked = self.owner_of(headers), responses_ask.decode(body)
        before = await self._before(owner, asked, recent)
        request = self.runs.new_request(headers, asked.chat_body(before, is_stream=asked.is_streamed), None)
        turn = Turn(owner, asked, before, ResponseTeller(asked))
        if asked.ask.background:
            await self._start(turn, request, reply, leaving)
        elif not asked.is_resumable or not await self._go_on(turn, request, reply, recent):
            await self._answer(turn, request, reply, leaving, recent)

    async def prepare(self, headers: Headers, body: bytes, reply: Reply, leaving: Leaving, recent: Recent) -> None:
        """Answer with a response that has no output, and that others may follow: its prompt is computed by then.

        Raises PointsmanError before there is a head."""
        owner, asked = self.owner_of(headers), responses_ask.decode(body)
        before = await self._before(owner, asked, recent)
        request = self.runs.new_request(headers, asked.prefill_body(before), None)
        held = Held(reply, leaving)
        await self.begin(request, TranslatingReply(held, ResponseTeller(asked))).wait()
        if held.status != 200:
            held.release(None)
            return
        turn = Turn(owner, asked, before, ResponseTeller(asked))
        opening = turn.teller.prepare()
        await self._keep(turn, recent)
        reply.head(200, EARLY_STREAM, (("x-request-id", request.id),))
        reply.write(opening + turn.teller.last())
        reply.end(Outcome.OK, is_complete=True)

    async def kept(self, owner: str, id: str) -> Kept:
        """Raises UnknownResponse or ResponsesAway."""
        found = await self.archive.get(owner, id)
        if found is None:
            raise UnknownResponse(id)
        kept = msgspec.json.decode(found[1], type=Kept)
        kept.response["status"] = found[0]
        return kept

    async def cancel(self, owner: str, id: str) -> Kept:
        """Stop one that goes on without its client. Raises UnknownResponse or ResponsesAway."""
        await self.runs.cancel(owner, id)
        return await self.kept(owner, id)

    async def delete(self, owner: str, id: str) -> None:
        """Raises UnknownResponse or ResponsesAway."""
        if not await self.archive.delete(owner, id):
            raise UnknownResponse(id)
        await self.runs.stop(id)

    # the rest

    async def _before(self, owner: str, asked: Asked, recent: Recent | None) -> Messages:
        id = asked.ask.previous_response_id
        if id is None:
            return ()
        if recent is not None and (messages := recent.find(id)) is not None:
            return messages
        try:
            return (await self.kept(owner, id)).messages
        except UnknownResponse:
            raise UnknownPrevious(id) from None

    async def _answer(
        self, turn: Turn, request: Request, reply: Reply, leaving: Leaving, recent: Recent | None
    ) -> None:
        teller, held = turn.teller, Held(reply, leaving)
        teller.is_stored = teller.is_stored and self.archive.is_up
        await self.begin(request, TranslatingReply(held, teller)).wait()
        if teller.state in SAID:
            await self._keep(turn, recent)
        held.release(last_of(teller, is_stream=held.is_stream))

    async def _keep(self, turn: Turn, recent: Recent | None) -> None:
        """Stored where that is asked for and can be; what came of it is what the response says."""
        teller = turn.teller
        if recent is not None:
            recent.keep(teller.id, turn.messages())
        if not teller.is_stored:
            return
        record = turn.record()
        teller.is_stored = len(record) <= MAX_RECORD_BYTES
        if teller.is_stored:
            try:
                await patiently(lambda: self.archive.put(turn.owner, teller.id, teller.state, record), CLIENT_S)
            except ResponsesAway:
                teller.is_stored = False

    async def _start(self, turn: Turn, request: Request, reply: Reply, leaving: Leaving) -> None:
        """In the background: its client follows it like any other, or polls."""
        teller = turn.teller
        await self.runs.start(turn, request)
        if turn.asked.ask.stream:
            await pour(self.following, turn.owner, teller.id, -1, reply, leaving, request.headers)
        else:
            answer(reply, 200, msgspec.json.encode(teller.response()), request.headers)

    async def _go_on(self, turn: Turn, request: Request, reply: Reply, recent: Recent | None) -> bool:
        """A stream that may go on without its client. False where it cannot be stored now."""
        try:
            run = await self.runs.start(turn, request, reply)
        except (ResponsesAway, TooLongToStore):
            turn.teller.is_stored = False
            return False
        await run.ended()
        if recent is not None and turn.teller.state in SAID:
            recent.keep(turn.teller.id, turn.messages())
        return True


async def pour(
    following: Following, owner: str, id: str, after: int, reply: Reply, leaving: Leaving, headers: Headers
) -> None:
    """The events of a response behind that number, as they come, as SSE. Raises PointsmanError before the head."""
    await own_task()
    valve = Valve(leaving)
    opened = await following.open(owner, id, after)
    reply.bind(valve)
    reply.head(200, EARLY_STREAM, (("x-request-id", request_id(headers)),))
    number = after
    try:
        async with opened as found:
            async for events in found:
                reply.write(b"".join(map(sse, events)) or b": following\n\n")
                number += len(events)
                await valve.open.wait()
    except PointsmanError as error:
        reply.write(sse_failure(error, number + 1))
    reply.end(Outcome.OK, is_complete=True)


def answer(reply: Reply, status: int, body: bytes, headers: Headers, more: Headers = ()) -> None:
    """One JSON body."""
    reply.head(status, (*JSON, *more), (("x-request-id", request_id(headers)),), len(body))
    reply.write(body)
    reply.end(Outcome.OK if status < 400 else Outcome.REJECTED, is_complete=True)
