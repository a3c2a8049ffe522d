"""Conversations over one call."""

import asyncio
import json
from typing import Any

import grpc
import pytest

from pointsman.v1.common_pb2 import FINISH_REASON_ABORT, FINISH_REASON_STOP, Sampling
from pointsman.v1.inference_pb2 import (
    ChatMessage,
    ContentPart,
    InputAppend,
    InputCommit,
    SessionEvent,
    SessionOpen,
    SessionRequest,
    TurnCancel,
)
from router.transports.conversation import LEAST_PREFILL_CHARS
from tests.contracts.hostile import DONE, event
from tests.fakes import turns, until
from tests.router.transports.grpc.rig import Rig, open_rig


class Session:
    """The client's side of one call."""

    def __init__(self, rig: Rig) -> None:
        self.call: Any = rig.stub.ChatSession()

    async def say(self, **ask: object) -> None:
        await self.call.write(SessionRequest(**ask))  # type: ignore[arg-type]

    async def open(self, *messages: str, **fields: object) -> None:
        await self.say(open=SessionOpen(model="m", messages=[user(text) for text in messages], **fields))  # type: ignore[arg-type]

    async def commit(self, turn_id: str, *messages: str) -> None:
        await self.say(commit=InputCommit(turn_id=turn_id, messages=[user(text) for text in messages]))

    async def hear(self) -> SessionEvent:
        async with asyncio.timeout(10):
            heard = await self.call.read()
        assert isinstance(heard, SessionEvent)
        return heard

    async def hear_error(self) -> tuple[str, str, str]:
        heard = await self.hear()
        assert heard.WhichOneof("event") == "error", heard
        return heard.turn_id, heard.error.code, heard.error.field


def user(text: str) -> ChatMessage:
    return ChatMessage(role="user", parts=[ContentPart(text=text)])


def messages_of(body: bytes) -> list[str]:
    return [each["content"] for each in json.loads(body)["messages"]]


async def test_turns_are_answered_and_the_history_is_kept() -> None:
    async with open_rig() as rig:
        session = Session(rig)
        await session.open("before", sampling=Sampling(max_tokens=7))
        await session.say(append=InputAppend(text="Hel"))
        await session.say(append=InputAppend(text="lo"))
        await session.commit("t1")
        first = await rig.exchange()
        assert messages_of(first.attempt.body) == ["before", "Hello"]
        assert json.loads(first.attempt.body)["max_tokens"] == 7
        first.head()
        first.send(event("Hi") + DONE)
        first.end()
        heard = [await session.hear(), await session.hear()]
        assert [each.turn_id for each in heard] == ["t1", "t1"]
        assert (heard[0].answer.text, heard[1].answer.finish_reason) == ("Hi", FINISH_REASON_STOP)
        await session.commit("t2", "more")
        second = await rig.exchange(1)
        assert messages_of(second.attempt.body) == ["before", "Hello", "Hi", "more"]
        assert dict(first.attempt.headers)["x-session-id"] == dict(second.attempt.headers)["x-session-id"]
        session.call.cancel()


async def test_what_was_asked_before_the_client_closed_its_half_is_still_answered() -> None:
    async with open_rig() as rig:
        session = Session(rig)
        await session.open()
        await session.commit("t", "go")
        await session.call.done_writing()
        exchange = await rig.exchange()
        exchange.head()
        exchange.send(event("a") + DONE)
        exchange.end()
        assert [(await session.hear()).answer.text for _ in range(2)] == ["a", ""]
        assert await session.call.read() is grpc.aio.EOF
        assert await session.call.code() is grpc.StatusCode.OK


async def test_long_input_is_prefilled_while_it_comes_and_the_turn_waits_for_that() -> None:
    async with open_rig() as rig:
        session = Session(rig)
        await session.open()
        text = "word " * LEAST_PREFILL_CHARS
        await session.say(append=InputAppend(text=text))
        prefill = await rig.exchange()
        assert json.loads(prefill.attempt.body)["max_tokens"] == 1
        await session.say(append=InputAppend(text="end"))
        await session.commit("t")
        await turns(50)
        assert len(rig.upstream.exchanges) == 1
        prefill.answer(200, b"{}")
        turn = await rig.exchange(1)
        assert messages_of(turn.attempt.body) == [text + "end"]
        session.call.cancel()


async def test_a_turn_is_cancelled_under_way_or_waiting_and_the_session_goes_on() -> None:
    async with open_rig() as rig:
        session = Session(rig)
        await session.open()
        await session.commit("t1", "one")
        await session.commit("t2", "two")
        first = await rig.exchange()
        await session.say(cancel=TurnCancel(turn_id="t2"))
        waiting = await session.hear()
        assert (waiting.turn_id, waiting.answer.finish_reason) == ("t2", FINISH_REASON_ABORT)
        first.head()
        first.send(event("half"))
        assert (await session.hear()).answer.text == "half"
        await session.say(cancel=TurnCancel(turn_id="t1"))
        running = await session.hear()
        assert (running.turn_id, running.answer.finish_reason) == ("t1", FINISH_REASON_ABORT)
        assert first.is_aborted
        await session.commit("t3", "three")
        assert messages_of((await rig.exchange(1)).attempt.body) == ["one", "half", "three"]
        session.call.cancel()


async def test_a_client_that_leaves_cancels_its_turn_and_its_prefill() -> None:
    async with open_rig() as rig:
        session = Session(rig)
        await session.open()
        await session.say(append=InputAppend(text="x" * LEAST_PREFILL_CHARS))
        prefill = await rig.exchange()
        session.call.cancel()
        await until(lambda: prefill.is_aborted)


@pytest.mark.parametrize(
    ("ask", "field"),
    [
        ({}, "ask"),
        ({"append": InputAppend(text="x")}, "open"),
        ({"commit": InputCommit(turn_id="t")}, "open"),
        ({"open": SessionOpen()}, "model"),
        ({"open": SessionOpen(model="m", messages=[ChatMessage()])}, "messages[0].role"),
    ],
)
async def test_a_wrong_ask_is_told_and_the_session_goes_on(ask: dict[str, object], field: str) -> None:
    async with open_rig() as rig:
        session = Session(rig)
        await session.say(**ask)
        assert (await session.hear_error())[2] == field
        await session.open()
        await session.commit("")
        assert (await session.hear_error())[2] == "turn_id"
        await session.commit("t")
        assert (await session.hear_error())[2] == "messages", "nothing was said"
        await session.commit("t", "hi")
        await rig.exchange()
        await session.commit("t", "again")
        assert await session.hear_error() == ("t", "", "turn_id")
        await session.open()
        assert (await session.hear_error())[2] == "open"
        session.call.cancel()


async def test_a_turn_that_fails_is_told_and_has_not_been() -> None:
    async with open_rig() as rig:
        session = Session(rig)
        await session.open()
        await session.commit("t1", "bad")
        words = {"message": "no", "type": "invalid_request_error", "param": "messages", "code": "c"}
        (await rig.exchange()).answer(400, json.dumps({"error": words}).encode())
        assert await session.hear_error() == ("t1", "c", "messages")
        await session.commit("t2", "good")
        assert messages_of((await rig.exchange(1)).attempt.body) == ["good"]
        session.call.cancel()
