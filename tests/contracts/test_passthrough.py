"""What goes through, each way, and what does not.

The faults: fields that the router does not know dropped from requests; answers decoded and encoded anew; the first
token held back to be sent in a batch; and the client's credentials shown to the engine beside its own key.
"""

import json
from dataclasses import replace

import pytest

from tests.contracts.adapters import over_http
from tests.contracts.conftest import Rig, Rigs
from tests.contracts.hostile import DONE, answers, event, streams
from tests.fakes import turns, until

SECRET = ("Authorization", "Bearer of-the-client")

STREAMS = {
    "unknown fields": b'data: {"choices":[{"delta":{"content":"a","reasoning":null,"x":1.50}}],"y":{}}\n\n' + DONE,
    "other alphabets": 'data: {"choices":[{"delta":{"content":"é 漢 🚂 \\u00e9"}}]}\n\n'.encode() + DONE,
    "CRLF": b'data: {"choices":[]}\r\n\r\ndata: [DONE]\r\n\r\n',
    "comments and event names": b': ping\n\nevent: x\ndata: {"a":1}\n\n' + DONE,
    "several lines of data": b"data: {\ndata: }\n\n" + DONE,
    "an error of the engine's own": b'data: {"error":{"message":"out of memory"}}\n\n' + DONE,
}


@pytest.mark.parametrize("name", STREAMS)
async def test_a_stream_passes_byte_for_byte(rigs: Rigs, name: str) -> None:
    rig = await rigs.open()
    rig.script.otherwise = streams(STREAMS[name])
    answer = await (await rig.ask(stream=True)).answer()
    assert answer.payload == STREAMS[name]
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"


@pytest.mark.parametrize("num_bytes", [1, 2, 7, 64])
async def test_a_stream_passes_byte_for_byte_however_it_is_cut_into_reads(rigs: Rigs, num_bytes: int) -> None:
    rig = await rigs.open()
    client = await rig.ask(stream=True)
    call = await rig.call()
    call.stream()
    whole = b"".join(STREAMS.values()).replace(DONE, b"") + DONE
    for start in range(0, len(whole), num_bytes):
        call.send(whole[start : start + num_bytes])
        await turns(2)
    call.end()
    assert (await client.answer()).payload == whole


async def test_an_event_of_many_kilobytes_passes(rigs: Rigs) -> None:
    """A tail is held back to keep an error event clear of it, but not more than 64 KiB of it."""
    rig = await rigs.open()
    whole = event("x" * 300_000) + event("y") + DONE
    rig.script.otherwise = streams(whole)
    assert (await (await rig.ask(stream=True)).answer()).payload == whole


async def test_each_event_is_passed_on_before_the_next_is_there(rigs: Rigs) -> None:
    rig = await rigs.open()
    client = await rig.ask(stream=True)
    call = await rig.call()
    call.stream()
    for number in range(5):
        call.send(event(f"token {number}"))
        assert (await client.read_until(event(f"token {number}"))).count(b"data: ") == number + 1
    call.send(DONE)
    call.end()
    await client.answer()


@over_http
async def test_a_whole_answer_passes_byte_for_byte(rigs: Rigs) -> None:
    rig = await rigs.open()
    body = '{ "id" :1,\n "é":"漢", "usage":{"prompt_tokens": 5, "completion_tokens":2, "z":[]} , "f":1.50 }'.encode()
    rig.script.otherwise = answers(body, 200, ("X-Engine", "kept"))
    answer = await (await rig.ask()).answer()
    assert answer.payload == body
    assert answer.headers["x-engine"] == "kept"


async def test_a_request_passes_byte_for_byte_with_fields_that_the_router_does_not_know(rigs: Rigs) -> None:
    rig = await rigs.open()
    rig.script.otherwise = answers({})
    body = (
        '{ "model":"m" ,"guided_json": {"é": [1.50,null]},\n"messages":[{"role":"user","content":"hi","x":1}]}'.encode()
    )
    client = await rig.connect()
    client.ask_with(body)
    await client.answer()
    assert rig.script.calls[0].body == body
    assert rig.script.calls[0].path == "/v1/chat/completions"


async def test_our_queues_priority_does_not_reach_an_engine_that_would_refuse_it(rigs: Rigs) -> None:
    rig = await rigs.open()
    rig.script.otherwise = answers({})
    body = b'{"model": "m", "priority": 3, "messages": [{"role":"user", "content":"\\u00e9"}], "z": 1.50}'
    client = await rig.connect()
    client.ask_with(body)
    await client.answer()
    sent = rig.script.calls[0].body
    assert json.loads(sent) == {key: value for key, value in json.loads(body).items() if key != "priority"}
    assert b'[{"role":"user", "content":"\\u00e9"}]' in sent, "other values keep their very bytes"


async def test_every_answer_says_who_answered_and_why(rigs: Rigs) -> None:
    rig = await rigs.open()
    rig.script.otherwise = streams(event("a"), DONE)
    answer = await (await rig.ask(("X-Request-Id", "my-id"), stream=True)).answer()
    assert answer.headers["x-request-id"] == "my-id"
    assert answer.headers["x-pointsman-replica"] == rig.script.calls[0].replica_id
    assert answer.headers["x-pointsman-reason"].startswith("policy=pointsman; matched_tokens=0; expected_wait_ms=")
    assert (answer.headers["cache-control"], answer.headers["x-accel-buffering"]) == ("no-cache", "no")
    assert rig.script.calls[0].headers["x-request-id"] == "my-id"


@pytest.mark.parametrize("sent", [None, "a b", "x" * 200, "é"])
async def test_a_request_without_a_sane_id_gets_one(rigs: Rigs, sent: str | None) -> None:
    rig = await rigs.open()
    rig.script.otherwise = answers({})
    headers = [] if sent is None else [("X-Request-Id", sent)]
    answer = await (await rig.ask(*headers)).answer()
    assert answer.headers["x-request-id"].startswith("req-")
    assert rig.script.calls[0].headers["x-request-id"] == answer.headers["x-request-id"]


async def test_the_clients_credentials_never_reach_a_replica(rigs: Rigs) -> None:
    rig = await rigs.open()
    await _serve_one(rig)
    headers = rig.script.calls[0].headers
    assert not {"authorization", "x-api-key", "cookie"} & set(headers)
    assert not any("of-the-client" in value for value in headers.values())
    assert headers["x-other"] == "kept"


async def test_the_replicas_own_key_reaches_it_alone(rigs: Rigs) -> None:
    rig = await rigs.open(num_replicas=1, forward_credentials=True)
    replica = rig.station.registry.replicas()[0]
    replica.spec = replace(replica.spec, api_key="of-the-replica")
    await _serve_one(rig)
    call = rig.script.calls[0]
    assert call.headers["authorization"] == "Bearer of-the-replica"
    assert call.header_names.count("authorization") == 1
    assert not any("of-the-client" in value for value in call.headers.values())


async def test_the_clients_credentials_are_passed_on_where_that_is_configured(rigs: Rigs) -> None:
    rig = await rigs.open(forward_credentials=True)
    await _serve_one(rig)
    assert rig.script.calls[0].headers["authorization"] == SECRET[1]


async def _serve_one(rig: Rig) -> None:
    rig.script.otherwise = answers({})
    client = await rig.ask(SECRET, ("X-Api-Key", "of-the-client"), ("Cookie", "of-the-client"), ("X-Other", "kept"))
    assert (await client.answer()).status == 200
    await until(lambda: rig.script.calls)
