"""Responses that go on without their client in this process: begun, watched over, ended, handed on. Knows the archive's
moves and the proxy's reply; knows nothing of HTTP.

Each is held under a lease. What another process takes over, cancels or deletes is stopped here within `WATCH_S`; what a
process that is gone has left is run again, if none of its answer was told, and else has failed.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from router.core import Band, Headers, Request, Standing
from router.errand import Errand, own_task
from router.errors import InvalidRequest, PointsmanError
from router.ports import Clock, Reply
from router.transports.chunks import Failure
from router.transports.dialects import responses_ask
from router.transports.dialects.responses_tell import CANCELLED, ResponseTeller, last_event
from router.transports.dialects.translating import TranslatingReply
from router.transports.leaving import Leaving
from router.transports.responses.following import Bell
from router.transports.responses.here import AnyArchive
from router.transports.responses.patience import patiently
from router.transports.responses.replies import Held, Taped
from router.transports.responses.states import (
    MAX_RECORD_BYTES,
    Kept,
    Orphan,
    ResponsesAway,
    ResponseState,
    TooLongToStore,
    Work,
)
from router.transports.responses.tape import Tape
from router.transports.responses.turn import Turn, data_of, last_of

Begin = Callable[[Request, Reply], Errand]
NewRequest = Callable[[Headers, bytes, Standing | None], Request]

WATCH_S = 1.0
MOST_DEATHS = 3
# A stream whose client has gone ends after so long without anybody who follows it.
UNFOLLOWED_S = 15.0
# So long may a client wait for its last event until that is stored, where Redis was lost in the middle.
CLIENT_S = 1.0
# The end of one that nobody waits for is told again and again, for longer than a lease: then it is another's.
END_AWAY_S = 20.0
# Behind an outage, or its own start, a process takes nothing yet: who holds it may be about to renew.
SETTLE_S = 5.0
# Created, queued, in progress: nothing of the answer.
_NUM_OPENING = 3
_CUT = Failure("The answer was cut before its end.", "server_error", None, "server_error")
_DIED = "Whoever ran the response died in the middle of it."
log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Run:
    """One of them, held under `fence`. `left_at` is when the client of a stream left that is not in the background."""

    turn: Turn
    fence: int
    tape: Tape
    errand: Errand | None = None
    left_at: float | None = None
    is_attached: bool = False
    is_lost: bool = False

    async def ended(self) -> None:
        """Who is cancelled here stops it."""
        if self.errand is not None:
            await self.errand.wait()

    def ending(self) -> tuple[int, list[bytes]]:
        """The events still to be written, behind the number of the first. One that was not streamed has its last."""
        teller = self.turn.teller
        last = data_of(teller.last())
        if not self.turn.asked.ask.stream:
            return 0, [last]
        return (teller.num_told, [last]) if self.tape.is_broken else (self.tape.num_said, [*self.tape.rest(), last])

    @property
    def is_untold(self) -> bool:
        """Nothing of its answer was told to anybody."""
        return bool(self.turn.asked.ask.background) and self.tape.num_said <= _NUM_OPENING

    def __repr__(self) -> str:
        teller = self.turn.teller
        return f"<Run {teller.id} {teller.state}{' lost' if self.is_lost else ''}>"


@dataclass(eq=False, slots=True)
class Runs:
    """`begin` serves a request that `new_request` makes. While `is_draining()` this process takes nothing on."""

    archive: AnyArchive
    begin: Begin
    new_request: NewRequest
    clock: Clock
    is_draining: Callable[[], bool] = lambda: False
    bell: Bell = field(default_factory=Bell)
    held: dict[str, Run] = field(default_factory=dict)
    _settled_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._settled_at = self.clock() + SETTLE_S

    async def start(self, turn: Turn, request: Request, reply: Reply | None = None) -> Run:
        """Known before it is begun, so that whoever asks for it finds it. Raises ResponsesAway or TooLongToStore."""
        teller, asked = turn.teller, turn.asked
        opening = teller.queue() if asked.ask.background else b""
        band = request.band if request.band is not None else Band.NORMAL
        work = msgspec.json.encode(Work(msgspec.json.encode(asked.fields).decode(), band))
        record = turn.record()
        if len(record) > MAX_RECORD_BYTES or len(work) > MAX_RECORD_BYTES:
            raise TooLongToStore
        fence = await self.archive.begin(turn.owner, teller.id, teller.state, record, work)
        return self._go(turn, fence, opening, request, reply)

    async def cancel(self, owner: str, id: str) -> None:
        """Wherever it runs; one that does not stays as it is. Raises ResponsesAway."""
        taken = await self.archive.cancel(owner, id)
        if taken is None:
            return
        await self.stop(id)
        if (found := await self.archive.get(owner, id)) is not None:
            kept = msgspec.json.decode(found[1], type=Kept)
            await self._end_kept(id, *taken, kept, ResponseState.CANCELLED, CANCELLED)

    async def stop(self, id: str) -> None:
        """If it runs here: it is another's by now, or nobody's."""
        if (run := self.held.get(id)) is not None:
            self._lose(run)
            await run.ended()

    async def watch(self) -> None:
        """Until it is cancelled; what runs then goes on elsewhere."""
        try:
            while True:
                await asyncio.sleep(WATCH_S)
                try:
                    await self.look()
                except ResponsesAway:
                    self._settled_at = self.clock() + SETTLE_S
                except Exception:
                    log.exception("responses could not be looked after")
        finally:
            await asyncio.shield(self.close())

    async def look(self) -> None:
        """Renew what is ours, stop what is not any more, take what was left. Raises ResponsesAway."""
        await self._renew()
        may_take = self.clock() >= self._settled_at and not self.is_draining()
        if may_take and (orphan := await self.archive.take()) is not None:
            await self._adopt(orphan)

    async def close(self) -> None:
        """Stop all, and leave them to others."""
        runs = list(self.held.values())
        for run in runs:
            if run.errand is not None:
                run.errand.cancel()
        for run in runs:
            await run.ended()

    # the rest

    def _go(self, turn: Turn, fence: int, opening: bytes, request: Request, reply: Reply | None) -> Run:
        teller = turn.teller

        def state() -> ResponseState:
            """Its end is told with its record, and not before."""
            return ResponseState.IN_PROGRESS if teller.has_ended else teller.state

        def lost() -> None:
            self._lose(run)

        tape = Tape(self.archive, teller.id, fence, state, lambda: self.bell.ring(teller.id), lost)
        run = self.held[teller.id] = Run(turn, fence, tape, is_attached=reply is not None)
        if turn.asked.ask.stream:
            tape.add(opening)
        run.errand = Errand(self._carry(run, request, reply))
        run.errand.step()
        return run

    async def _carry(self, run: Run, request: Request, reply: Reply | None) -> None:
        await own_task()
        assert run.errand is not None  # it is this one
        add = run.tape.add if run.turn.asked.ask.stream else lambda _: run.tape.tell_state()
        held = Held(Taped(reply, add, lambda: self._left(run)), Leaving(run.errand))
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(run.tape.run())
                await self.begin(request, TranslatingReply(held, run.turn.teller)).wait()
                run.tape.close()
            await self._end(run, held, END_AWAY_S)
        except asyncio.CancelledError:
            await asyncio.shield(self._leave(run, held))
            raise
        except Exception:
            log.exception("response %s broke", run.turn.teller.id)
            await self._leave(run, held)
        finally:
            if self.held.get(run.turn.teller.id) is run:  # else it is ours again, after we had lost it
                del self.held[run.turn.teller.id]
            self.bell.ring(run.turn.teller.id)

    def _left(self, run: Run) -> None:
        run.is_attached = False
        run.left_at = self.clock()

    def _lose(self, run: Run) -> None:
        run.is_lost = True
        if run.errand is not None:
            run.errand.cancel()

    async def _end(self, run: Run, held: Held, patience_s: float) -> None:
        turn, teller = run.turn, run.turn.teller
        is_refused = held.status >= 400 and not held.is_stream
        if is_refused and not turn.asked.ask.background:
            with contextlib.suppress(ResponsesAway):  # its client hears of it, and nobody else knows of it
                await self.archive.delete(turn.owner, teller.id)
        elif is_refused and self.is_draining() and run.is_untold:
            with contextlib.suppress(ResponsesAway):
                await self.archive.give_back([(teller.id, run.fence)])
        else:
            if not teller.has_ended:
                run.tape.add(teller.ending(_CUT))
            teller.is_stored = await self._tell_end(run, min(CLIENT_S, patience_s) if run.is_attached else patience_s)
        held.release(last_of(teller, is_stream=held.is_stream))

    async def _tell_end(self, run: Run, patience_s: float) -> bool:
        teller, record = run.turn.teller, run.turn.record()
        first, events = run.ending()

        def end() -> Awaitable[bool]:
            return self.archive.end(teller.id, run.fence, teller.state, record, first, events)

        try:
            return await patiently(end, patience_s)
        except ResponsesAway as error:
            log.warning("the end of response %s could not be stored: %s", teller.id, error.message)
            return False

    async def _leave(self, run: Run, held: Held) -> None:
        """It was stopped: as another's, or because this process ends. Nobody has heard of its answer: others run it."""
        teller = run.turn.teller
        with contextlib.suppress(ResponsesAway):
            if run.is_lost:
                teller.cancel()
            elif run.is_untold:
                await self.archive.give_back([(teller.id, run.fence)])
            else:
                await self._end(run, held, 0.0)
        held.release(last_of(teller, is_stream=held.is_stream))

    async def _renew(self) -> None:
        runs = list(self.held.values())
        if not runs:
            return
        found = await self.archive.renew([(run.turn.teller.id, run.fence) for run in runs])
        for run, unseen_s in zip(runs, found, strict=True):
            if unseen_s is None:
                self._lose(run)
            elif run.left_at is not None and min(unseen_s, self.clock() - run.left_at) > UNFOLLOWED_S:
                await self.cancel(run.turn.owner, run.turn.teller.id)

    async def _adopt(self, orphan: Orphan) -> None:
        try:
            kept = msgspec.json.decode(orphan.record, type=Kept)
        except msgspec.DecodeError:
            log.warning("the record of response %s cannot be read: it is dropped", orphan.id)
            await self.archive.delete(orphan.owner, orphan.id)
            return
        if orphan.is_cancelled:
            state, error = ResponseState.CANCELLED, CANCELLED
            await self._end_kept(orphan.id, orphan.fence, orphan.num_said, kept, state, error)
            return
        try:
            if orphan.num_deaths >= MOST_DEATHS or orphan.num_said > _NUM_OPENING or not kept.response["background"]:
                raise InvalidRequest(_DIED)
            turn, request = self._again(orphan, kept)
        except (PointsmanError, msgspec.DecodeError) as failed:
            error = {"code": "server_error", "message": str(failed)}
            await self._end_kept(orphan.id, orphan.fence, orphan.num_said, kept, ResponseState.FAILED, error)
            return
        self._go(turn, orphan.fence, turn.teller.queue(), request, None)

    def _again(self, orphan: Orphan, kept: Kept) -> tuple[Turn, Request]:
        work = msgspec.json.decode(orphan.work, type=Work)
        asked = responses_ask.decode(work.body.encode())
        before = kept.messages[: len(kept.messages) - len(asked.messages)]
        teller = ResponseTeller(asked, wall=lambda: int(kept.response["created_at"]), id=orphan.id)
        standing = Standing(tenant=orphan.owner, band=Band(work.band))
        request = self.new_request((), asked.chat_body(before, is_stream=True), standing)
        return Turn(orphan.owner, asked, before, teller), request

    async def _end_kept(
        self, id: str, fence: int, num_said: int, kept: Kept, state: ResponseState, error: Mapping[str, str]
    ) -> None:
        """End one of which we have the record alone."""
        kept.response |= {"status": state, "error": error}
        last = data_of(last_event(kept.response, state, num_said))
        await self.archive.end(id, fence, state, msgspec.json.encode(kept), num_said, [last])
        self.bell.ring(id)

    def __repr__(self) -> str:
        return f"<Runs {len(self.held)} responses>"
