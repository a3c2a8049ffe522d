import asyncio
import builtins
import json
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web

from router.chat import ChatOptions, chat
from tests.router.served import nobody, served

EXPLAINED = {"x-pointsman-replica": "a:1", "x-pointsman-reason": "policy=pointsman"}


def delta(text: str | None) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": {"content": text}}]}).encode() + b"\n\n"


USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 3}}\n\n'
ROLE = b'data: {"choices": [{"delta": {"role": "assistant"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


class FakeRouter:
    """A data port that streams what a test says, and keeps what it was asked."""

    def __init__(self, *events: bytes, headers: dict[str, str] | None = None) -> None:
        self.events = events
        self.headers = EXPLAINED if headers is None else headers
        self.models: object = {"object": "list", "data": [{"id": "first"}, {"id": "second"}]}
        self.models_status = 200
        self.refusal: tuple[int, str] | None = None
        self.is_cut = False
        self.asked: list[dict[str, Any]] = []

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        return app

    async def _models(self, _: web.Request) -> web.StreamResponse:
        if isinstance(self.models, str):
            return web.Response(status=self.models_status, text=self.models)
        return web.json_response(self.models, status=self.models_status)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(await request.json())
        if self.refusal is not None:
            return web.Response(status=self.refusal[0], text=self.refusal[1])
        response = web.StreamResponse(headers={"content-type": "text/event-stream", **self.headers})
        await response.prepare(request)
        for event in self.events:
            await response.write(event)
        if self.is_cut and request.transport is not None:
            request.transport.close()
        return response


def options(url: str, **fields: Any) -> ChatOptions:
    return ChatOptions(**{"url": url, "model": None, "max_tokens": 16, "temperature": 0.0, "says_why": False, **fields})


async def test_an_answer_is_printed_in_its_order(capsys: pytest.CaptureFixture[str]) -> None:
    router = FakeRouter(ROLE, delta("The capital"), delta(None), b": comment\n\n", delta(" is\nParis."), USAGE, DONE)
    async with served(router.app()) as url:
        assert await chat(options(url), "What?") == 0
    assert capsys.readouterr() == ("The capital is\nParis.\n", "")
    assert router.asked == [
        {
            "model": "first",
            "messages": [{"role": "user", "content": "What?"}],
            "stream": True,
            "max_tokens": 16,
            "temperature": 0.0,
        }
    ]


async def test_each_piece_is_printed_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake sends a piece once the one before it is on the terminal."""
    printed = asyncio.Event()
    seen: list[object] = []

    def note(*words: object, **_: object) -> None:
        seen.extend(words)
        printed.set()

    router = FakeRouter()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=EXPLAINED)
        await response.prepare(request)
        for text in ("one", "two", "three"):
            printed.clear()
            await response.write(delta(text))
            await asyncio.wait_for(printed.wait(), 20)
        await response.write(DONE)
        return response

    monkeypatch.setattr(router, "_chat", answer)
    monkeypatch.setattr(builtins, "print", note)
    async with served(router.app()) as url:
        assert await chat(options(url), "What?") == 0
    assert seen == ["one", "two", "three"]


async def test_a_named_model_is_asked_for_without_a_look_at_the_list() -> None:
    router = FakeRouter(DONE)
    router.models = "no list"
    async with served(router.app()) as url:
        assert await chat(options(url, model="mine", max_tokens=3, temperature=0.5), "x") == 0
    assert (router.asked[0]["model"], router.asked[0]["max_tokens"], router.asked[0]["temperature"]) == ("mine", 3, 0.5)


async def test_why_is_told_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    async with served(FakeRouter(delta("x"), DONE).app()) as url:
        await chat(options(url, says_why=True), "x")
    assert capsys.readouterr() == ("x\n", "[a:1: policy=pointsman]\n")


async def test_why_is_found_in_the_stream_where_the_head_went_out_early(capsys: pytest.CaptureFixture[str]) -> None:
    comments = [
        b": waiting for a replica\n\n",
        b": x-pointsman-replica: b:2\n\n",
        b": x-pointsman-reason: policy=p\n\n",
    ]
    async with served(FakeRouter(*comments, delta("x"), DONE, headers={}).app()) as url:
        assert await chat(options(url, says_why=True), "x") == 0
    assert capsys.readouterr() == ("x\n", "[b:2: policy=p]\n")


async def test_why_of_another_server_is_that_it_did_not_say(capsys: pytest.CaptureFixture[str]) -> None:
    async with served(FakeRouter(delta("x"), DONE, headers={}).app()) as url:
        assert await chat(options(url, says_why=True), "x") == 0
    assert capsys.readouterr().err == "[no replica named: no reason]\n"


# what goes wrong is one sentence


async def failure(url: str, capsys: pytest.CaptureFixture[str], **fields: Any) -> tuple[str, str]:
    """What stands on standard output and error after a chat that fails."""
    assert await chat(options(url, **fields), "x") == 1
    out, err = capsys.readouterr()
    assert err.startswith("pointsman: ")
    assert len(err.splitlines()) == 1
    return out, err.removeprefix("pointsman: ").rstrip("\n")


async def test_an_error_in_the_stream_ends_it_after_what_came(capsys: pytest.CaptureFixture[str]) -> None:
    error = b'data: {"error": {"message": "The replica was lost.", "type": "upstream_error"}}\n\n'
    async with served(FakeRouter(delta("The"), error, DONE).app()) as url:
        assert await failure(url, capsys) == ("The\n", "The replica was lost.")


@pytest.mark.parametrize(
    ("status", "answer", "sentence"),
    [
        (503, '{"error": {"message": "No replica is ready."}}', "No replica is ready."),
        (404, '{"error": "only a text"}', '{"error": "only a text"}'),
        (502, "Bad gateway", "Bad gateway"),
    ],
)
async def test_a_refusal_is_told_in_its_own_words(
    capsys: pytest.CaptureFixture[str], status: int, answer: str, sentence: str
) -> None:
    router = FakeRouter()
    router.refusal = (status, answer)
    async with served(router.app()) as url:
        assert await failure(url, capsys) == ("", sentence)


async def test_no_model_yet_is_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    router = FakeRouter()
    router.models = {"object": "list", "data": []}
    async with served(router.app()) as url:
        assert await failure(url, capsys) == ("", "the router serves no model yet")


@pytest.mark.parametrize(
    ("status", "models", "sentence"),
    [
        (200, "<html>", "the router answered what is no JSON object: '<html>'"),
        (200, [1], "the router answered what is no JSON object: '[1]'"),
        (200, {"unknown": 1}, "the router serves no model yet"),
        (401, {"error": {"message": "A key is needed."}}, "A key is needed."),
    ],
)
async def test_a_server_that_is_no_router_is_one_sentence(
    capsys: pytest.CaptureFixture[str], status: int, models: object, sentence: str
) -> None:
    router = FakeRouter()
    router.models_status, router.models = status, models
    async with served(router.app()) as url:
        assert await failure(url, capsys) == ("", sentence)


async def test_an_event_that_is_none_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    async with served(FakeRouter(b"data: nonsense\n\n").app()) as url:
        assert (await failure(url, capsys))[1].endswith("'nonsense'")


async def test_an_answer_that_breaks_off_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    router = FakeRouter(delta("The"))
    router.is_cut = True
    async with served(router.app()) as url:
        out, err = await failure(url, capsys)
    assert (out, err.split(":")[0]) == ("The\n", "the answer broke off")


@pytest.mark.parametrize("model", [None, "m"])
async def test_nobody_there_is_one_sentence(capsys: pytest.CaptureFixture[str], model: str | None) -> None:
    url = nobody()
    out, err = await failure(url, capsys, model=model)
    assert (out, err.startswith(f"no router answers at {url}: ")) == ("", True)


@pytest.mark.parametrize("url", ["nonsense", "http://"])
async def test_a_url_that_is_none_is_one_sentence(capsys: pytest.CaptureFixture[str], url: str) -> None:
    assert (await failure(url, capsys))[0] == ""


# a conversation


def typed(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """What the user types, line by line, then the end of the input."""
    left: Iterator[str] = iter(lines)

    def read(_: str) -> str:
        try:
            return next(left)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr(builtins, "input", read)


async def test_a_conversation_sends_all_that_was_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    router = FakeRouter(delta("Answer"), delta("."), DONE)
    typed(monkeypatch, "one", "  ", "two")
    async with served(router.app()) as url:
        assert await chat(options(url), None) == 0
    user, assistant = [{"role": "user", "content": text} for text in ("one", "two")], "Answer."
    assert [asked["messages"] for asked in router.asked] == [
        [user[0]],
        [user[0], {"role": "assistant", "content": assistant}, user[1]],
    ]
    assert capsys.readouterr().out == "Answer.\nAnswer.\n"


async def test_a_conversation_without_a_word_asks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    router = FakeRouter(DONE)
    typed(monkeypatch)
    async with served(router.app()) as url:
        assert await chat(options(url), None) == 0
    assert router.asked == []
