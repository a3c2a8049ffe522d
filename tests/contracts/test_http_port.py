"""HTTP/1.1 as clients speak it to the data port: one connection through good and bad, whatever its framing."""

import json

import pytest
from aiohttp import ClientSession

from router.core import Outcome
from router.transports.http import PortLimits
from tests.contracts.adapters import HttpClient, chat_body, chat_request, over_http
from tests.contracts.conftest import Rig, Rigs
from tests.contracts.hostile import DONE, answers, event, streams
from tests.fakes import turns, until

pytestmark = over_http

MODELS = b"GET /v1/models HTTP/1.1\r\nHost: router\r\n\r\n"


def plain(method: str, path: str, body: bytes = b"") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: router\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.fixture
def reply() -> str:
    """These cases are HTTP's own."""
    return "http"


# request -> status; each is answered in full, and the connection goes on.
WRONG: dict[str, tuple[bytes, int]] = {
    "not JSON": (chat_request(b"{"), 400),
    "no model": (chat_request(b'{"messages": []}'), 400),
    "no messages": (chat_request(b'{"model": "m", "messages": []}'), 400),
    "a wrong type": (chat_request(chat_body(stream="yes")), 400),
    "negative max_tokens": (chat_request(chat_body(max_tokens=-1)), 400),
    "an unknown model": (chat_request(chat_body(model="other")), 404),
    "an unknown route": (plain("POST", "/v1/nothing", b"{}"), 404),
    "a wrong method of ours": (plain("GET", "/v1/chat/completions"), 405),
    "a wrong method of aiohttp's": (plain("DELETE", "/v1/models"), 405),
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_a_connection_goes_on_after_a_wrong_request(rigs: Rigs, wrong: str) -> None:
    data, status = WRONG[wrong]
    rig = await rigs.open()
    rig.script.otherwise = answers({"id": 1})
    client = await rig.connect()
    for number in range(3):
        client.send(data)
        answer = await client.answer(number)
        assert (answer.status, answer.is_complete) == (status, True)
        assert answer.error["message"]
        assert answer.headers["x-request-id"]
    client.ask()
    assert (await client.answer(3)).payload == b'{"id": 1}'
    assert not client.is_closed


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": "yes"}, "stream"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_completion_tokens": 1.5}, "max_completion_tokens"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"model": None}, "model"),
    ],
)
async def test_a_wrong_field_is_named(rigs: Rigs, fields: dict[str, object], param: str) -> None:
    """The fault: options that are not understood, and ignored without a word."""
    rig = await rigs.open()
    answer = await (await rig.ask(**fields)).answer()
    assert (answer.status, answer.error["param"]) == (400, param)
    assert f"`{param}`" in str(answer.error["message"])
    assert rig.script.calls == []


@pytest.mark.parametrize("status", [400, 429, 500, 503])
async def test_a_connection_goes_on_after_an_error_of_a_replica(rigs: Rigs, status: int) -> None:
    rig = await rigs.open(num_replicas=1)
    client = await rig.connect()
    rig.script.queue.append(answers({"error": "no"}, status))
    client.ask()
    assert (await client.answer()).status == status
    rig.station.clock.now += 60.0
    rig.script.otherwise = answers({"id": 1})
    client.ask()
    assert (await client.answer(1)).payload == b'{"id": 1}'


async def test_a_connection_goes_on_after_an_error_in_band(rigs: Rigs) -> None:
    rig = await rigs.open()
    rig.script.queue.append(streams(event("a")))
    client = await rig.ask(stream=True)
    assert b'"error"' in (await client.answer()).payload
    rig.script.otherwise = streams(event("b"), DONE)
    client.ask(stream=True)
    assert (await client.answer(1)).payload == event("b") + DONE


async def test_pipelined_requests_are_answered_in_order(rigs: Rigs) -> None:
    rig = await rigs.open()
    client = await rig.connect()
    wrong, chat, stream = chat_request(b"{"), chat_request(chat_body()), chat_request(chat_body(stream=True))
    rig.script.queue.extend([answers({"id": 1}), streams(event("a"), DONE), answers({"id": 2})])
    client.send(chat + MODELS + wrong + stream + MODELS + chat)
    await client.answer(5)
    assert [answer.status for answer in client.answers] == [200, 200, 400, 200, 200, 200]
    bodies = [answer.payload for answer in client.answers]
    assert (bodies[0], bodies[3], bodies[5]) == (b'{"id": 1}', event("a") + DONE, b'{"id": 2}')
    assert bodies[1] == bodies[4]
    assert [model["id"] for model in json.loads(bodies[1])["data"]] == ["m"]


async def test_very_many_requests_that_are_answered_at_once_come_in_one_read(rigs: Rigs) -> None:
    """The fault: each answer began the next request from within itself, up to Python's limit of depth."""
    rig = await rigs.open()
    rig.station.gate.drain()
    client = await rig.connect()
    number = 2000
    client.send(chat_request(chat_body()) * number)
    await client.answer(number - 1)
    assert {answer.status for answer in client.answers} == {503}


async def test_pipelined_requests_are_served_one_at_a_time(rigs: Rigs) -> None:
    rig = await rigs.open()
    client = await rig.connect()
    client.send(chat_request(chat_body(user="one")) + chat_request(chat_body(user="two")))
    first = await rig.call()
    await turns()
    assert len(rig.script.calls) == 1
    first.json({"id": 1})
    second = await rig.call(1)
    assert b"two" in second.body
    second.json({"id": 2})
    assert (await client.answer(1)).payload == b'{"id": 2}'


async def test_a_client_that_leaves_takes_its_pipelined_requests_with_it(rigs: Rigs) -> None:
    rig = await rigs.open()
    client = await rig.connect()
    client.send(chat_request(chat_body()) * 3)
    call = await rig.call()
    client.leave()
    await until(lambda: call.is_dropped)
    await rig.until_idle()
    assert len(rig.script.calls) == 1


async def test_a_connection_is_lent_to_aiohttp_and_taken_back_between_two_inference_requests(rigs: Rigs) -> None:
    rig = await rigs.open()
    rig.script.otherwise = answers({"id": 1})
    client = await rig.connect()
    for number in range(0, 9, 3):
        client.ask()
        assert (await client.answer(number)).payload == b'{"id": 1}'
        client.send(MODELS)
        listed = await client.answer(number + 1)
        assert (listed.status, listed.headers["content-type"]) == (200, "application/json; charset=utf-8")
        client.send(plain("GET", "/v1/models/m"))
        assert json.loads((await client.answer(number + 2)).payload)["id"] == "m"
    assert not client.is_closed


async def test_a_client_that_leaves_while_its_connection_is_lent_ends_the_loan(rigs: Rigs) -> None:
    rig = await rigs.open()
    client = await rig.connect()
    client.send(MODELS)
    client.leave()
    await until(lambda: not rig.replies.port.connections)


async def test_an_ordinary_client_library_is_served(rigs: Rigs) -> None:
    rig = await rigs.open()
    rig.script.otherwise = streams(event("a"), DONE)
    host, port = rig.replies.address
    async with ClientSession(f"http://{host}:{port}") as session:
        for _ in range(2):
            async with session.post("/v1/chat/completions", data=chat_body(stream=True)) as response:
                assert await response.read() == event("a") + DONE
            async with session.get("/health") as response:
                assert response.status == 200


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
async def test_an_http_1_0_client_gets_its_answer_and_the_close(rigs: Rigs, is_stream: bool) -> None:
    """It knows no chunks: where there is no length, the end of the connection ends the body."""
    rig = await rigs.open()
    rig.script.otherwise = streams(event("a"), DONE) if is_stream else answers({"id": 1})
    client = await rig.connect()
    client.send(chat_request(chat_body(stream=is_stream), version="1.0"))
    answer = await client.answer()
    assert answer.payload == (event("a") + DONE if is_stream else b'{"id": 1}')
    assert "transfer-encoding" not in answer.headers
    await until(lambda: client.is_closed)


async def test_an_http_1_0_client_may_keep_its_connection_where_there_is_a_length(rigs: Rigs) -> None:
    rig = await rigs.open()
    rig.script.otherwise = answers({"id": 1})
    client = await rig.connect()
    for number in range(2):
        client.send(chat_request(chat_body(), ("Connection", "keep-alive"), version="1.0"))
        answer = await client.answer(number)
        assert (answer.payload, answer.headers["connection"]) == (b'{"id": 1}', "keep-alive")


async def test_a_client_that_asks_for_the_close_gets_it(rigs: Rigs) -> None:
    rig = await rigs.open()
    rig.script.otherwise = answers({"id": 1})
    client = await rig.connect()
    client.ask(("Connection", "close"))
    answer = await client.answer()
    assert (answer.payload, answer.headers["connection"]) == (b'{"id": 1}', "close")
    await until(lambda: client.is_closed)


async def test_a_client_that_expects_continue_gets_it_before_its_body(rigs: Rigs) -> None:
    rig = await rigs.open()
    rig.script.otherwise = answers({"id": 1})
    client, body = await rig.connect(), chat_body()
    request = chat_request(body, ("Expect", "100-continue"))
    client.send(request.removesuffix(body))
    await until(lambda: client.raw)
    assert bytes(client.raw) == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.send(body)
    assert (await client.answer()).payload == b'{"id": 1}'
    assert "expect" not in rig.script.calls[0].headers


@pytest.mark.parametrize("num_bytes", [1, 3, 10_000])
async def test_a_body_in_chunks_reaches_the_replica_whole(rigs: Rigs, num_bytes: int) -> None:
    rig = await rigs.open()
    rig.script.otherwise = answers({"id": 1})
    client, body = await rig.connect(), chat_body(user="é" * 200)
    client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: router\r\nTransfer-Encoding: chunked\r\n\r\n")
    for start in range(0, len(body), num_bytes):
        piece = body[start : start + num_bytes]
        client.send(b"%x\r\n%b\r\n" % (len(piece), piece))
    client.send(b"0\r\nX-Trailer: 1\r\n\r\n")
    assert (await client.answer()).payload == b'{"id": 1}'
    call = rig.script.calls[0]
    assert call.body == body
    assert call.headers["content-length"] == str(len(body))
    assert not {"transfer-encoding", "x-trailer"} & set(call.headers)


async def test_a_client_that_reads_no_answer_but_asks_on_is_bounded_too(rigs: Rigs) -> None:
    """The next answer must not begin while the one before fills the buffer: it would not be held back again."""
    rig = await rigs.open()
    client = await rig.connect()
    client.stop_reading()
    rig.script.otherwise = answers(b"x" * 120_000)
    client.send(chat_request(chat_body()) * 20)
    await until(lambda: rig.replies.num_unsent > 64 * 1024)
    await turns(500)
    assert rig.replies.num_unsent <= 256 * 1024
    client.read_on()
    await client.answer(19)
    assert {len(answer.body) for answer in client.answers} == {120_000}


async def test_an_idle_client_that_reads_nothing_is_dropped(rigs: Rigs) -> None:
    """A close that waits for the rest to be read would wait for ever."""
    rig = await rigs.open(port=PortLimits(idle_timeout_s=75.0))
    client = await rig.connect()
    client.stop_reading()
    rig.script.otherwise = answers(b"x" * 100_000)
    client.ask()
    await until(lambda: rig.station.outcomes == [Outcome.OK] and rig.replies.num_unsent)
    await _pass_time(rig, 74.0)
    assert rig.replies.port.connections
    await _pass_time(rig, 2.0)
    await until(lambda: not rig.replies.port.connections)


async def test_an_idle_connection_is_closed_and_a_busy_one_is_not(rigs: Rigs) -> None:
    rig = await rigs.open(port=PortLimits(idle_timeout_s=75.0))
    idle, busy = await rig.connect(), await rig.ask(stream=True)
    await rig.call()
    await _pass_time(rig, 76.0)
    await until(lambda: idle.is_closed)
    assert not busy.is_closed


async def test_an_answer_to_a_refused_client_is_heard_before_the_close(rigs: Rigs) -> None:
    rig = await rigs.open(port=PortLimits(max_body_bytes=1000))
    client: HttpClient = await rig.connect()
    client.send(chat_request(chat_body(user="x" * 100_000)))
    answer = await client.answer()
    assert (answer.status, answer.error["code"]) == (413, "request_too_large")
    assert rig.replies.refused == [413]


async def _pass_time(rig: Rig, seconds: float) -> None:
    rig.station.clock.now += seconds
    rig.replies.port.sweep()
    await turns()
