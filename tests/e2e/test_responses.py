"""Responses over several router processes, asked for by OpenAI's own client: stored, dropped, followed, cancelled, run
again when their process is killed, and over one socket."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest
from openai.lib.responses_websocket import AsyncResponsesWebSocketSession, ResponsesWebSocketLimits

from tests.e2e.company import company, in_flight, processes
from tests.e2e.fake_replica import FakeReplica, fake_replicas
from tests.e2e.fleet import MODEL, Fleet, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ENDED = ("completed", "incomplete", "failed", "cancelled")
LIMITS = ResponsesWebSocketLimits(
    max_lanes=8, max_events_per_lane=10_000, max_events=50_000, max_bytes_per_lane=2**25, max_bytes=2**27
)


@pytest.fixture(scope="module")
def replicas() -> Iterator[list[FakeReplica]]:
    with fake_replicas(2) as replicas:
        yield replicas


@pytest.fixture(scope="module")
def pair(replicas: list[FakeReplica]) -> Iterator[Fleet]:
    with company(replicas) as fleet:
        yield fleet


@contextmanager
def new_client(fleet: Fleet) -> Iterator[openai.OpenAI]:
    """On a connection of its own: any worker may serve it. On a busy machine Redis may seem away for a moment, which is
    a 503 that asks to try again."""
    with openai.OpenAI(base_url=f"{fleet.url}/v1", api_key="unused", max_retries=20) as client:
        yield client


def ask(num_tokens: int, pace_s: float = 0.0, **fields: Any) -> dict[str, Any]:
    """A fake replica says so many words, at that pace."""
    return {"model": "m", "input": "go", "max_output_tokens": num_tokens, "user": str(pace_s), **fields}


def words(num_tokens: int) -> str:
    return "".join(f"{number} " for number in range(num_tokens))


def stored(fleet: Fleet, **fields: Any) -> str:
    """The id of a response that is stored, as it says itself."""
    ids: list[str] = []

    def is_stored() -> bool:
        with new_client(fleet) as client:
            response = client.responses.create(**ask(2, stream=False), **fields)
        ids.append(response.id)
        return response.store is True

    wait_until(is_stored, 60, "a response is stored")
    return ids[-1]


def status(fleet: Fleet, id: str) -> str:
    with new_client(fleet) as client:
        return str(client.responses.retrieve(id).status)


def test_a_dropped_stream_is_followed_by_another_client_through_any_process(pair: Fleet) -> None:
    for _ in range(4):
        with new_client(pair) as client:
            stream = client.responses.create(**ask(30, 0.02), background=True, stream=True)
            seen = [event for event, _ in zip(stream, range(8), strict=False)]
            stream.close()
        assert seen[0].type == "response.created"
        id = seen[0].response.id
        with new_client(pair) as other:
            rest = list(other.responses.retrieve(id, stream=True, starting_after=seen[-1].sequence_number))
            whole = list(other.responses.retrieve(id, stream=True))
        assert [event.sequence_number for event in [*seen, *rest]] == list(range(len(seen) + len(rest)))
        assert [event.to_dict() for event in whole] == [event.to_dict() for event in [*seen, *rest]]
        assert rest[-1].type == "response.incomplete"
        assert rest[-1].response.output_text == words(30)


def test_a_conversation_goes_on_through_any_process(pair: Fleet) -> None:
    previous = stored(pair)
    for _ in range(6):
        previous = stored(pair, previous_response_id=previous)
    with new_client(pair) as client:
        client.responses.delete(previous)
    with new_client(pair) as client, pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**ask(2), previous_response_id=previous)
    assert caught.value.code == "previous_response_not_found"


def test_one_in_the_background_is_cancelled_through_any_process(pair: Fleet) -> None:
    for _ in range(3):
        with new_client(pair) as client:
            id = client.responses.create(**ask(100_000, 0.05), background=True).id
        wait_until(lambda id=id: status(pair, id) == "in_progress", 60, "it runs")
        with new_client(pair) as other:
            assert other.responses.cancel(id).status == "cancelled"
        assert status(pair, id) == "cancelled"
    wait_until(lambda: in_flight(pair) == 0, 60, "the replicas are let go of")


def test_what_a_killed_process_ran_in_the_background_is_run_again(pair: Fleet) -> None:
    ids = []
    for _ in range(6):
        with new_client(pair) as client:
            ids.append(client.responses.create(**ask(50, 0.1), background=True).id)
    worker = next(iter(processes(pair, "worker").values()))
    worker.kill()
    worker.wait(60)
    wait_until(lambda: len(processes(pair, "worker")) == 2, 60, "another has taken its place")
    wait_until(lambda: all(status(pair, id) in ENDED for id in ids), 120, "all have ended")
    with new_client(pair) as client:
        assert {client.responses.retrieve(id).output_text for id in ids} == {words(50)}


def test_openais_client_talks_on_several_streams_of_one_socket(pair: Fleet) -> None:
    assert asyncio.run(_talk(pair)) == [words(5)] * 12


async def _talk(fleet: Fleet) -> list[str]:
    async with (
        openai.AsyncOpenAI(base_url=f"{fleet.url}/v1", api_key="unused") as client,
        client.responses.connect() as connection,
        AsyncResponsesWebSocketSession(connection, limits=LIMITS) as session,
    ):
        lanes = [session.lane(f"lane-{number}") for number in range(4)]
        said = await asyncio.gather(*(_turns(lane, 3) for lane in lanes))
        return [text for texts in said for text in texts]


async def _turns(lane: Any, number: int) -> list[str]:
    """Nothing is stored: the socket remembers what was said on it."""
    texts, previous = [], None
    for _ in range(number):
        await lane.send({"type": "response.create", **ask(5, 0.01), "store": False, "previous_response_id": previous})
        response = await lane.get_final_response()
        texts.append(response.output_text)
        previous = response.id
    return texts


def test_the_real_model_answers_on_a_socket_and_in_the_background(fleet: Fleet) -> None:
    question: dict[str, Any] = {"model": MODEL, "input": "What is the capital of France?", "temperature": 0}
    with new_client(fleet) as client:
        heard = list(client.responses.create(**question, background=True, stream=True))
    assert [event.type for event in heard[:3]] == ["response.created", "response.queued", "response.in_progress"]
    assert heard[-1].type == "response.completed"
    assert heard[-1].response.output_text == "The capital of France is Paris."
    with new_client(fleet) as client:
        again = list(client.responses.retrieve(heard[-1].response.id, stream=True, starting_after=3))
    assert [event.sequence_number for event in again] == list(range(4, len(heard)))
    first, second = asyncio.run(_ask_twice(fleet, question))
    assert first == "The capital of France is Paris."
    assert "Rome" in second


async def _ask_twice(fleet: Fleet, question: dict[str, Any]) -> tuple[str, str]:
    async with (
        openai.AsyncOpenAI(base_url=f"{fleet.url}/v1", api_key="unused") as client,
        client.responses.connect() as connection,
    ):
        await connection.response.create(**question, store=False)
        first = await _final(connection)
        follow: dict[str, Any] = question | {"input": "And of Italy?", "max_output_tokens": 20}
        await connection.response.create(**follow, previous_response_id=first.id)
        return first.output_text, (await _final(connection)).output_text


async def _final(connection: Any) -> Any:
    while (event := await connection.recv()).type not in ("response.completed", "response.incomplete"):
        assert event.type != "error", event
    return event.response
