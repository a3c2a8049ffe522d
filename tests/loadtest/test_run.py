import asyncio
import os
import signal
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

from loadtest.client import Client
from loadtest.errors import LoadError
from loadtest.run import Run, measure
from loadtest.sample import Measured
from loadtest.settings import RunSettings
from loadtest.trace import Row, Trace
from loadtest.wire import Wire
from loadtest.workload import conversations
from tests.loadtest import fake_server as fake
from tests.loadtest.fake_server import MODEL, FakeServer


def settings_for(server: FakeServer, **more: Any) -> RunSettings:
    return RunSettings(url=server.url, quiet=True, timeout_s=30, **more)


async def test_a_closed_loop_keeps_its_number_in_flight(server: FakeServer) -> None:
    server.otherwise = fake.gated
    running = asyncio.create_task(measure(settings_for(server, concurrency=4, requests=10), None))
    await server.until(lambda: server.num_running == 4)
    server.gate.set()
    measured = await running
    assert len(measured.samples) == 10
    assert server.most_running == 4
    assert all(sample.failure is None for sample in measured.samples)


async def test_an_open_loop_does_not_wait_for_answers(server: FakeServer) -> None:
    server.otherwise = fake.gated
    running = asyncio.create_task(measure(settings_for(server, rate=10_000.0, requests=20), None))
    await server.until(lambda: server.num_running == 20)
    server.gate.set()
    assert len((await running).samples) == 20


async def test_a_conversation_sends_its_growing_history(server: FakeServer) -> None:
    await measure(settings_for(server, concurrency=1, requests=3, turns=3, prefix_share=0.5), None)
    first, second, third = (body["messages"] for body in server.bodies)
    assert [message["role"] for message in third] == ["system", *["user", "assistant"] * 2, "user"]
    assert second[: len(first)] == first
    assert third[: len(second)] == second
    assert second[len(first)] == {"role": "assistant", "content": "one two three"}


async def test_a_failed_turn_leaves_no_mark_in_the_history(server: FakeServer) -> None:
    server.script = [fake.whole, fake.too_many, fake.whole]
    measured = await measure(settings_for(server, concurrency=1, requests=3, turns=3), None)
    first, second, third = (body["messages"] for body in server.bodies)
    assert len(first) == 1
    assert len(second) == len(third) == 3
    assert third[:2] == second[:2]
    assert third[2] != second[2]
    assert [sample.failure is None for sample in measured.samples] == [True, False, True]


async def test_completions_send_the_history_as_a_growing_prompt(server: FakeServer) -> None:
    await measure(settings_for(server, concurrency=1, requests=2, turns=2, endpoint="completions"), None)
    first, second = (body["prompt"] for body in server.bodies)
    assert second.startswith(first + "\none two three\n")
    assert server.paths == {"/v1/completions": 2}


async def test_a_trace_is_replayed_with_its_users_and_lengths(server: FakeServer) -> None:
    rows = (Row(0.0, 5, 3, tenant="t1"), Row(0.001, 6, 4, tenant="t2"))
    await measure(settings_for(server, trace="mine"), Trace("mine", rows, None))
    assert [(body["user"], body["max_tokens"]) for body in server.bodies] == [("t1", 3), ("t2", 4)]


async def test_without_streaming_whole_answers_are_asked_for(server: FakeServer) -> None:
    measured = await measure(settings_for(server, concurrency=2, requests=2, stream=False), None)
    assert [body["stream"] for body in server.bodies] == [False, False]
    assert [sample.num_output_tokens for sample in measured.samples] == [3, 3]


async def test_the_first_listed_model_is_asked_for(server: FakeServer) -> None:
    measured = await measure(settings_for(server, concurrency=1, requests=1), None)
    assert measured.model == server.bodies[0]["model"] == MODEL


async def test_a_model_that_the_server_lacks_stops_before_the_run(server: FakeServer) -> None:
    with pytest.raises(LoadError, match="--model"):
        await measure(settings_for(server, concurrency=1, model="other"), None)
    assert server.bodies == []


async def test_a_closed_loop_sends_nothing_after_the_duration(server: FakeServer) -> None:
    server.otherwise = fake.slower_than_the_run
    settings = settings_for(server, concurrency=3, duration_s=fake.RUN_S, turns=2)
    measured = await measure(settings, None)
    assert len(measured.samples) == len(server.bodies) == 3
    assert all(sample.failure is None for sample in measured.samples)


async def test_an_open_loop_sends_nothing_after_the_duration(server: FakeServer) -> None:
    settings = settings_for(server, rate=200.0, duration_s=fake.RUN_S)
    due = [talk for talk in islice(conversations(settings, None), 1000) if (talk.at_s or 0.0) < fake.RUN_S]
    measured = await measure(settings, None)
    assert 0 < len(measured.samples) == len(server.bodies) <= len(due)


async def test_an_interrupt_keeps_what_was_measured(server: FakeServer) -> None:
    server.script = [fake.whole] * 3
    server.otherwise = fake.endless
    running = asyncio.create_task(measure(settings_for(server, concurrency=2, requests=100), None))
    await server.until(lambda: len(server.bodies) == 5 and server.num_running == 2)
    os.kill(os.getpid(), signal.SIGINT)
    measured = await running
    assert measured.is_interrupted
    assert len(measured.samples) == 3
    assert measured.num_unfinished == 2
    await server.until(lambda: server.num_running == 0)


async def test_the_state_of_a_run_shows(client: Client, server: FakeServer) -> None:
    server.script = [fake.too_many]
    settings = settings_for(server, concurrency=1, requests=2)
    run = Run(client, Wire(MODEL, "chat", True, False), settings)
    await run.go(conversations(settings, None), 2)
    assert repr(run) == "<Run 2 done 1 failed 0 in flight>"


async def test_progress_is_shown_unless_quiet(
    server: FakeServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadtest.progress._LINE_S", 0.0)
    server.otherwise = fake.gated

    async def watched(is_quiet: bool) -> Measured:
        settings = RunSettings(url=server.url, quiet=is_quiet, concurrency=1, requests=1)
        server.gate.clear()
        running = asyncio.create_task(measure(settings, None))
        await server.until(lambda: server.num_running == 1)
        server.gate.set()
        return await running

    await watched(is_quiet=True)
    assert capsys.readouterr().err == ""
    await watched(is_quiet=False)
    assert "0 done, 0 failed, 1 in flight of 1 planned" in capsys.readouterr().err


async def test_no_request_is_lost_or_counted_twice_whatever_fails(server: FakeServer) -> None:
    kinds: list[Callable[..., Any]] = [fake.whole, fake.too_many, fake.cut, fake.in_band_error, fake.hung_up]
    server.script = kinds * 8
    measured = await measure(settings_for(server, concurrency=5, requests=40, turns=2), None)
    assert len(measured.samples) == len(server.bodies) == 40
    assert sum(sample.failure is None for sample in measured.samples) == 8
    assert measured.num_unfinished == 0
