"""The trial of real engines, without them: what it makes of answers, of wrong use, and of a wire that loses batches."""

import asyncio
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import aiohttp
import pytest
import zmq
import zmq.asyncio
from aiohttp import web

from loadtest.interop import __main__ as interop
from loadtest.interop.__main__ import Trial, Turn
from loadtest.interop.engines import Engine, RouterProcess, carrying
from tests.router.served import served


def turn(talk: int = 0, replica: str = "a", expected: int = 0, reported: int = 0) -> Turn:
    return Turn(talk, replica, 500, expected, reported)


@pytest.mark.parametrize(
    ("expected", "reported", "agrees"), [(256, 256, True), (256, 128, True), (128, 256, True), (384, 128, False)]
)
def test_a_turn_agrees_within_one_block(expected: int, reported: int, agrees: bool) -> None:
    assert turn(expected=expected, reported=reported).agrees is agrees


@pytest.mark.parametrize(
    ("turns", "sticks"),
    [
        ([turn(0, "a"), turn(1, "b"), turn(0, "a"), turn(1, "b")], True),
        ([turn(0, "a"), turn(0, "b"), turn(0, "a")], False),
    ],
)
def test_a_conversation_sticks_where_its_later_turns_go_to_one_replica(turns: Sequence[Turn], sticks: bool) -> None:
    trial = Trial(None, None, [], [])  # type: ignore[arg-type]
    trial._judge_sticking(turns)
    assert [held for _, held, _ in trial.results] == [sticks]


def test_a_program_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert interop.main(["--vllm", str(tmp_path / "vllm"), "--model", str(tmp_path)]) == 2
    assert "--vllm: there is no file" in capsys.readouterr().err


def test_an_adapter_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("vllm", "tokenizer.json"):
        (tmp_path / name).touch()
    flags = ["--vllm", str(tmp_path / "vllm"), "--model", str(tmp_path), "--adapter", str(tmp_path / "nowhere")]
    assert interop.main(flags) == 2
    assert "--adapter: there is no file" in capsys.readouterr().err


@pytest.mark.parametrize(("states", "held"), [(["loaded", "loaded"], True), (["loaded", "failed"], False)])
async def test_an_adapter_must_be_on_both_and_say_something_else(states: Sequence[str], held: bool) -> None:
    async def load(_: web.Request) -> web.Response:
        return web.json_response({"replicas": [{"state": state} for state in states]})

    async def complete(request: web.Request) -> web.Response:
        return web.json_response({"choices": [{"text": (await request.json())["model"]}]})

    app = web.Application()
    app.router.add_post("/v1/load_lora_adapter", load)
    app.router.add_post("/v1/completions", complete)
    async with served(app) as url, aiohttp.ClientSession() as session:
        router = RouterProcess(int(url.rpartition(":")[2]), 1, Path("model"), Path("log"))
        trial = Trial(session, router, [], [])
        await trial._load_adapter(Path("adapter"))
    assert [each for _, each, _ in trial.results] == [held, True]


def test_what_did_not_hold_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    interop.print_results([("one", True, "fine"), ("other", False, "wrong")])
    shown = capsys.readouterr().out
    assert "yes" in shown
    assert "NO" in shown


async def test_a_wire_passes_batches_on_and_loses_those_it_is_told_to() -> None:
    engine = Engine(Path("vllm"), Path("model"), 18300, Path("log"))
    context = zmq.asyncio.Context()
    with closing(context.socket(zmq.PUB)) as publisher, closing(context.socket(zmq.SUB)) as listener:
        publisher.bind(engine.events_address)
        listener.setsockopt_string(zmq.SUBSCRIBE, "")
        async with carrying([engine]) as (wire,), asyncio.timeout(20):
            listener.connect(engine.wire_address)
            while not await listener.poll(10):
                await publisher.send_multipart([b"", b"ready"])
            while await listener.poll(200):
                await listener.recv_multipart()
            wire.num_to_lose = 1
            for payload in (b"lost", b"passed"):
                await publisher.send_multipart([b"", payload])
            assert await listener.recv_multipart() == [b"", b"passed"]
            assert wire.num_lost == 1
    context.destroy(linger=0)
    assert repr(engine) == "<Engine 127.0.0.1:18300 is down>"
