"""What a client is told when a replica answers with an error, or with nonsense.

The fault: error bodies in the shapes of five engines, of which SDKs read one; and a router that trips over an answer
that is not HTTP, or keeps its connection.
"""

import json
from collections.abc import Sequence

import pytest

from router.core import Candidate, Decision, Demand, Outcome
from tests.contracts.conftest import Rigs
from tests.contracts.hostile import Behaviour, answers, says
from tests.fakes import until

SHAPES: dict[str, tuple[object, str]] = {
    "openai": ({"error": {"message": "bad", "type": "invalid_request_error", "param": None, "code": None}}, "bad"),
    "a string for an error": ({"error": "bad"}, "bad"),
    "flat, as older engines": ({"object": "error", "message": "bad", "type": "BadRequestError", "code": 400}, "bad"),
    "detail, as FastAPI": ({"detail": "bad"}, "bad"),
    "detail in parts, as FastAPI": ({"detail": [{"loc": ["body"], "msg": "bad"}]}, '[{"loc": ["body"], "msg": "bad"}]'),
    "no JSON": (b"<html>bad</html>", "<html>bad</html>"),
    "JSON, but no object": ([1], "[1]"),
    "nothing": (b"", "The replica answered 400."),
    "no UTF-8": (b"\xff\xfe", "\ufffd\ufffd"),
}


@pytest.mark.parametrize("shape", SHAPES)
async def test_an_error_of_any_shape_is_normalised_with_its_status(rigs: Rigs, shape: str) -> None:
    body, message = SHAPES[shape]
    rig = await rigs.open()
    rig.script.otherwise = answers(body, 400)
    answer = await (await rig.ask(stream=True)).answer()
    assert answer.status == 400
    assert answer.headers["content-type"] == "application/json"
    assert answer.error["message"] == message
    assert isinstance(answer.error["type"], str)


async def test_an_error_names_the_replica_and_the_request(rigs: Rigs) -> None:
    rig = await rigs.open()
    rig.script.otherwise = answers({}, 400)
    answer = await (await rig.ask(("X-Request-Id", "my-id"))).answer()
    assert answer.headers["x-request-id"] == "my-id"
    assert answer.headers["x-pointsman-replica"] == rig.script.calls[0].replica_id


async def test_an_endless_error_body_is_cut_at_a_bound(rigs: Rigs) -> None:
    rig = await rigs.open()
    rig.script.otherwise = answers(b"x" * 5_000_000, 400)
    answer = await (await rig.ask()).answer()
    assert len(answer.payload) < 70_000
    assert str(answer.error["message"]).startswith("xxx")


NONSENSE: dict[str, Behaviour] = {
    "no HTTP": says(b"SSH-2.0-OpenSSH_9.2\r\n"),
    "no status": says(b"HTTP/1.1 OK\r\n\r\n"),
    "binary": says(bytes(range(256))),
    "a length that is no number": says(b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n"),
    "two lengths": says(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}"),
    "a switch of protocol": says(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"),
    "a head without end": says(b"HTTP/1.1 200 OK\r\n" + b"x-y: " + b"z" * 70_000 + b"\r\n"),
}


@pytest.mark.parametrize("nonsense", NONSENSE)
async def test_nonsense_is_a_502_and_the_next_request_is_served(rigs: Rigs, nonsense: str) -> None:
    rig = await rigs.open(num_replicas=1)
    rig.script.script.append(NONSENSE[nonsense])
    client = await rig.ask()
    answer = await client.answer()
    assert answer.status == 502
    assert answer.error["code"] == "replica_bad_answer"
    assert "replica" in str(answer.error["message"])
    await until(lambda: rig.script.calls[0].is_dropped)
    assert rig.station.outcomes == [Outcome.UPSTREAM_FAILED]
    rig.script.otherwise = answers({"id": 1})
    client.ask()
    assert (await client.answer(1)).payload == b'{"id": 1}'


async def test_a_body_shorter_than_its_length_is_cut(rigs: Rigs) -> None:
    rig = await rigs.open(num_replicas=1)
    rig.script.otherwise = says(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{}", then_closes=True)
    answer = await (await rig.ask()).answer()
    assert answer.is_cut
    await rig.until_idle()
    assert rig.station.outcomes == [Outcome.CUT_MID_STREAM]


async def test_what_is_longer_than_its_length_is_not_the_clients(rigs: Rigs) -> None:
    """The rest would be taken for the head of the next answer on that connection: it is not used again."""
    rig = await rigs.open(num_replicas=1)
    rig.script.script.append(says(b'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}{"id": "of somebody else"}'))
    rig.script.otherwise = answers({"id": 1})
    client = await rig.ask()
    assert (await client.answer()).payload == b"{}"
    await until(lambda: rig.script.calls[0].is_dropped)
    client.ask()
    assert (await client.answer(1)).payload == b'{"id": 1}'


async def test_an_unknown_model_is_a_404_without_a_call(rigs: Rigs) -> None:
    rig = await rigs.open()
    answer = await (await rig.ask(model="other", stream=True)).answer()
    assert (answer.status, answer.error["code"], answer.error["param"]) == (404, "model_not_found", "model")
    assert rig.script.calls == []


async def test_a_prompt_over_the_context_is_a_400_without_a_call(rigs: Rigs) -> None:
    rig = await rigs.open()
    rig.station.registry.pools()[0].max_model_len = 64
    answer = await (await rig.ask(stream=True)).answer()
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    assert rig.script.calls == []


async def test_a_full_house_is_a_429_with_retry_after(rigs: Rigs) -> None:
    rig = await rigs.open(max_open_requests=1)
    first = await rig.ask(stream=True)
    await rig.call()
    answer = await (await rig.ask(stream=True)).answer()
    assert (answer.status, answer.error["type"]) == (429, "rate_limit_error")
    assert int(answer.headers["retry-after"]) >= 1
    first.leave()


async def test_a_router_that_drains_refuses_new_work_and_ends_what_is_open(rigs: Rigs) -> None:
    rig = await rigs.open()
    client = await rig.ask()
    call = await rig.call()
    rig.station.gate.drain()
    answer = await (await rig.ask()).answer()
    assert (answer.status, answer.error["code"]) == (503, "draining")
    call.json({"id": 1})
    assert (await client.answer()).payload == b'{"id": 1}'


async def test_a_fault_of_our_own_is_a_500_that_blames_nobody(rigs: Rigs) -> None:
    class Broken:
        def decide(self, demand: Demand, candidates: Sequence[Candidate]) -> Decision | None:
            raise RuntimeError("a plug-in")

    rig = await rigs.open()
    rig.station.placement.policy = Broken()
    answer = await (await rig.ask()).answer()
    assert answer.status == 500
    assert "plug-in" not in json.dumps(answer.error)
    assert rig.station.faults == {}
