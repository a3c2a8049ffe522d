"""`ChatSession`: a conversation over one call. Knows its asks; the order of turns is `turns.py`'s matter, what is
kept of a conversation `conversation.py`'s, and serving a request the proxy's."""

import asyncio
from dataclasses import dataclass, field

from pointsman.v1.common_pb2 import FINISH_REASON_ABORT
from pointsman.v1.inference_pb2 import (
    ChatEvent,
    InputCommit,
    SessionError,
    SessionEvent,
    SessionOpen,
    SessionRequest,
)
from router.core import Outcome, Surface
from router.errors import InvalidRequest, PointsmanError
from router.transports.conversation import Answering, Conversation
from router.transports.grpc import asks, failures
from router.transports.grpc.answers import Told
from router.transports.grpc.calls import Calls, Context
from router.transports.grpc.failures import CallFailed
from router.transports.outbox import Outbox
from router.transports.turns import Turns


@dataclass(eq=False, slots=True)
class SessionCall:
    """One call. Asks are read as they come; turns are answered one after the other, each behind the prefill of its
    input; a wrong ask is told and harms nothing else."""

    calls: Calls
    context: Context
    max_bytes: int
    conversation: Conversation | None = None
    _turns: Turns[InputCommit] = field(init=False)
    _outbox: Outbox | None = None
    _is_half_closed: bool = False
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self._turns = Turns("turn_id", lambda: self.conversation is not None and self.conversation.is_prefilling)

    async def run(self) -> None:
        """To the end of the call: once the client says no more, what it asked for is still answered."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._answer_turns())
            while isinstance(ask := await self.context.read(), SessionRequest):
                await self._hear(ask, group)
            self._is_half_closed = True
            self._news.set()

    async def _hear(self, ask: SessionRequest, group: asyncio.TaskGroup) -> None:
        try:
            match ask.WhichOneof("ask"):
                case "open":
                    self._open(ask.open)
                case "append":
                    self._append(ask.append.text, group)
                case "commit":
                    self._commit(ask.commit)
                case "cancel":
                    await self._cancel(ask.cancel.turn_id)
                case None:
                    raise InvalidRequest("One of `open`, `append`, `commit` and `cancel` is required.", param="ask")
        except PointsmanError as error:
            await self._write(_failed(ask.commit.turn_id, failures.of_error(error)))

    def _open(self, ask: SessionOpen) -> None:
        if not self._turns.is_idle:
            raise InvalidRequest("A turn is under way: cancel it, or wait for its end.", param="open")
        messages = asks.messages(ask.messages) if ask.messages else []
        self.conversation = Conversation(asks.session_fields(ask), self.max_bytes, list(messages))

    def _append(self, text: str, group: asyncio.TaskGroup) -> None:
        conversation = self._opened()
        conversation.append(text)
        if self._turns.is_idle:
            self._prefill(conversation, group)

    def _commit(self, ask: InputCommit) -> None:
        self._opened()
        if not ask.turn_id:
            raise InvalidRequest("`turn_id` is required.", param="turn_id")
        self._turns.add(ask.turn_id, ask)
        self._news.set()

    async def _cancel(self, turn_id: str) -> None:
        """A turn that has ended meanwhile, or never was, is not running either way."""
        if turn_id == self._turns.current and self._outbox is not None:
            self._outbox.leave()
        if self._turns.withdraw(turn_id):
            await self._write(_answered(turn_id, ChatEvent(finish_reason=FINISH_REASON_ABORT)))

    def _opened(self) -> Conversation:
        if self.conversation is None:
            raise InvalidRequest("The first ask of a session is `open`.", param="open")
        return self.conversation

    def _prefill(self, conversation: Conversation, group: asyncio.TaskGroup) -> None:
        body = conversation.prefill_body()
        if body is not None:
            group.create_task(self._compute(conversation, body))

    async def _compute(self, conversation: Conversation, body: bytes) -> None:
        """What has been appended so far. However it ends, a turn works without it."""
        try:
            while body:
                async with self.calls.answer(self.context, Surface.CHAT, body, conversation.headers) as (_, outbox):
                    while await outbox.read() is not None:
                        pass
                conversation.prefilled()
                body = (self._turns.is_idle and conversation.prefill_body()) or b""
        finally:
            conversation.prefilled()
            self._news.set()

    async def _answer_turns(self) -> None:
        while not (self._is_half_closed and self._turns.is_idle):
            if (ask := self._turns.next()) is not None:
                await self._answer(ask)
            else:
                self._news.clear()
                await self._news.wait()

    async def _answer(self, ask: InputCommit) -> None:
        """Who hears of a turn's end may use its id again."""
        conversation, told = self._opened(), Answering()
        try:
            more = asks.messages(ask.messages) if ask.messages else ()
            body = conversation.commit(more)
            try:
                last = _answered(ask.turn_id, await self._carry(ask.turn_id, body, conversation, told))
            finally:
                conversation.answered(told)
        except CallFailed as failed:
            is_left = self._outbox is not None and self._outbox.outcome is Outcome.CLIENT_GONE
            aborted = _answered(ask.turn_id, ChatEvent(finish_reason=FINISH_REASON_ABORT))
            last = aborted if is_left else _failed(ask.turn_id, failed)
        except PointsmanError as error:
            last = _failed(ask.turn_id, failures.of_error(error))
        finally:
            self._outbox = None
            self._turns.end()
        await self._write(last)

    async def _carry(self, turn_id: str, body: bytes, conversation: Conversation, answering: Answering) -> ChatEvent:
        """All but the last event of an answer, which is what it gives."""
        async with self.calls.answer(self.context, Surface.CHAT, body, conversation.headers) as (id, outbox):
            self._outbox, told = outbox, Told(id)
            async for chunk in self.calls.events(None, outbox):
                answering.add(chunk)
                if (event := told.chat(chunk)) is not None:
                    await self._write(_answered(turn_id, event))
        return told.last_chat()

    async def _write(self, event: SessionEvent) -> None:
        async with self._writing:
            await self.context.write(event)


def _answered(turn_id: str, event: ChatEvent) -> SessionEvent:
    return SessionEvent(turn_id=turn_id, answer=event)


def _failed(turn_id: str, failed: CallFailed) -> SessionEvent:
    error = SessionError(
        status=failed.status.value[0], code=failed.code or "", message=failed.message, field=failed.field or ""
    )
    return SessionEvent(turn_id=turn_id, error=error)
