import json

import pytest

from router.core import Surface
from router.transports.http import MAX_BACKLOG_REQUESTS, ClientConnection
from tests.contracts.adapters import HttpClient
from tests.fakes import turns, until
from tests.router.transports.conftest import OpenPorts
from tests.router.transports.port import CHAT, OpenPort, RawClient, StubbornClient, get, post


async def closed(client: HttpClient) -> None:
    await until(lambda: client.is_closed)


async def test_a_chat_reaches_the_service_with_what_routing_needs(open_port: OpenPorts) -> None:
    port = await open_port(request_timeout_s=30.0)
    client = await port.connect()
    tools: list[object] = []
    body = {**CHAT, "stream": True, "priority": -3, "cache_salt": "s", "tools": tools, "unknown": 1}
    client.send(post("/v1/chat/completions?x=1", body, "X-Request-Id: id-1", "x-trace: 7"))
    request = (await port.call()).request
    assert (request.id, request.surface, request.model) == ("id-1", Surface.CHAT, "m")
    assert (request.arrived, request.deadline) == (port.clock.now, port.clock.now + 30.0)
    assert (request.is_stream, request.priority, request.cache_salt) == (True, -3, "s")
    assert (request.messages, request.prompt, request.template_options) == (CHAT["messages"], None, {"tools": tools})
    assert request.body == json.dumps(body).encode()
    assert ("x-trace", "7") in request.headers


async def test_a_completion_reaches_the_service_with_its_prompt(open_port: OpenPorts) -> None:
    port = await open_port()
    client = await port.connect()
    client.send(post("/v1/completions", {"model": "m", "prompt": [1, 2]}))
    request = (await port.call()).request
    assert (request.surface, request.prompt, request.messages) == (Surface.COMPLETIONS, [1, 2], None)
    assert (request.is_stream, request.priority, request.cache_salt) == (False, 0, None)


async def test_a_connection_serves_one_request_after_the_other(open_port: OpenPorts) -> None:
    port = await open_port()
    client = await port.connect()
    for i in range(3):
        client.send(post())
        (await port.call(i)).answer(b"%d" % i)
        assert (await client.answer(i)).payload == b"%d" % i
    assert not client.is_closed


async def test_a_pipeline_is_answered_in_its_order_one_at_a_time(open_port: OpenPorts) -> None:
    port = await open_port()
    client = await port.connect()
    client.send(post() + post() + get("/v1/chat/completions") + post())
    (await port.call(0)).head()
    await turns()
    assert len(port.calls) == 1
    port.calls[0].write(b"first")
    port.calls[0].end()
    (await port.call(1)).answer(b"second")
    (await port.call(2)).answer(b"fourth")
    assert [(await client.answer(i)).status for i in range(4)] == [200, 200, 405, 200]
    assert [client.answers[i].payload for i in (0, 1, 3)] == [b"first", b"second", b"fourth"]


async def test_a_client_that_wants_no_more_is_closed_after_its_answer(open_port: OpenPorts) -> None:
    port = await open_port()
    client = await port.connect()
    client.send(post("/v1/chat/completions", CHAT, "connection: close"))
    (await port.call()).answer(b"x")
    assert (await client.answer()).headers["connection"] == "close"
    await closed(client)


async def test_http_1_0_is_answered_until_the_close(open_port: OpenPorts) -> None:
    port = await open_port()
    client = await port.connect()
    client.send(post(version="1.0"))
    (await port.call()).answer(b"x")
    await closed(client)
    assert client.answers[0].payload == b"x"
    assert "transfer-encoding" not in client.answers[0].headers


# bad input


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_another_method_is_405_with_the_one_that_is_taken(open_port: OpenPorts, method: str, path: str) -> None:
    port = await open_port()
    client = await port.connect()
    client.send(get(path, "x-request-id: mine", method=method) + post())
    answer = await client.answer()
    assert (answer.status, answer.headers["allow"], answer.headers["x-request-id"]) == (405, "POST", "mine")
    assert answer.headers["content-type"] == "application/json"
    assert answer.error["code"] == "method_not_allowed"
    assert port.refused == [405]
    (await port.call()).answer(b"the connection goes on")
    assert (await client.answer(1)).status == 200


async def test_head_of_an_inference_route_gets_a_head_alone(open_port: OpenPorts) -> None:
    port = await open_port()
    client = await port.connect(RawClient)
    client.send(get("/v1/completions", method="HEAD") + get("/v1/completions", "connection: close"))
    await closed(client)
    first, second, _ = bytes(client.raw).split(b"\r\n\r\n")
    assert first.startswith(b"HTTP/1.1 405")
    assert second.startswith(b"HTTP/1.1 405")


@pytest.mark.parametrize("target", ["*", "http://a/v1/models", "http://a/v1/completions", "?a=b", "v1/models"])
async def test_a_target_that_is_no_path_is_404(open_port: OpenPorts, target: str) -> None:
    port = await open_port()
    client = await port.connect()
    client.send(get(target, method="OPTIONS" if target == "*" else "GET") + post())
    answer = await client.answer()
    assert answer.status in (400, 404)
    assert answer.error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", None),
        (b"[]", None),
        ({}, "model"),
        ({"model": "m"}, "messages"),
        ({**CHAT, "max_tokens": -1}, "max_tokens"),
    ],
)
async def test_a_bad_body_is_400_and_the_connection_goes_on(open_port: OpenPorts, body: object, param: str) -> None:
    port = await open_port()
    client = await port.connect()
    client.send(post(body=body) * 2)
    answers = [await client.answer(i) for i in range(2)]
    assert [(answer.status, answer.error["param"]) for answer in answers] == [(400, param)] * 2
    assert answers[0].headers["x-request-id"].startswith("req-")
    assert answers[0].headers["x-request-id"] != answers[1].headers["x-request-id"]
    assert port.refused == [400, 400]
    client.send(post())
    await port.call()


async def test_a_bad_last_request_closes_after_its_answer(open_port: OpenPorts) -> None:
    port = await open_port()
    client = await port.connect()
    client.send(post("/v1/chat/completions", b"{", "connection: close"))
    assert (await client.answer()).headers["connection"] == "close"
    await closed(client)


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"nonsense\r\n\r\n", 400, None),
        (post("/v1/chat/completions", CHAT, "content-length: 3"), 400, None),
        (post("/v1/chat/completions", CHAT, "transfer-encoding: chunked"), 400, None),
        (post("/v1/chat/completions", CHAT, "host: b"), 400, None),
        (post("/v1/chat/completions", CHAT, "content-encoding: br"), 415, "unsupported_content_encoding"),
        (post("/v1/chat/completions", CHAT, "content-encoding: gzip"), 400, None),
        (post(body=b"x" * 2000), 413, "request_too_large"),
        (post("/v1/chat/completions", CHAT, *["x-fill: " + "y" * 9000] * 8), 431, "headers_too_large"),
    ],
)
async def test_what_ends_the_connection_says_why_first(
    open_port: OpenPorts, sent: bytes, status: int, code: str | None
) -> None:
    port = await open_port(max_body_bytes=1000)
    client = await port.connect()
    client.send(sent)
    answer = await client.answer()
    assert (answer.status, answer.error["code"], answer.headers["connection"]) == (status, code, "close")
    assert (port.refused, port.calls) == ([status], [])
    await closed(client)


async def test_requests_before_nonsense_are_answered_before_it(open_port: OpenPorts) -> None:
    port = await open_port()
    client = await port.connect()
    client.send(post() + b"nonsense\r\n\r\n")
    (await port.call()).answer(b"x")
    assert [(await client.answer(i)).status for i in range(2)] == [200, 400]


async def test_a_refused_client_that_keeps_sending_is_not_read_and_let_go_after_a_while(open_port: OpenPorts) -> None:
    port = await open_port(max_body_bytes=1000, linger_s=2.0)
    client = await port.connect(StubbornClient)
    client.send(post(body=b"x" * 5000)[:-1])
    await until(lambda: port.refused)
    client.send(post() * 10)
    await turns()
    port.later(1.9)
    assert len(port.port.connections) == 1
    port.later(0.2)
    await until(lambda: not port.port.connections)
    assert port.calls == []


async def test_a_client_that_expects_a_go_ahead_gets_one(open_port: OpenPorts) -> None:
    port = await open_port()
    client = await port.connect()
    whole = post("/v1/chat/completions", CHAT, "expect: 100-continue")
    head, body = whole.split(b"\r\n\r\n")
    client.send(head + b"\r\n\r\n")
    await until(lambda: client.raw)
    assert client.raw == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.send(body)
    (await port.call()).answer(b"x")
    assert (await client.answer()).payload == b"x"


# time


async def test_a_slow_head_is_refused_however_it_drips(open_port: OpenPorts) -> None:
    port = await open_port(head_timeout_s=15.0)
    client = await port.connect()
    for piece in (b"POST /v1/", b"chat/", b"completions "):
        await port.send(client, piece)
        port.later(5.0)
    assert port.refused == []
    port.later(0.1)
    answer = await client.answer()
    assert (answer.status, answer.error["code"]) == (408, "request_too_slow")
    assert "head took too long" in str(answer.error["message"])


async def test_a_slow_body_is_refused_but_not_one_that_keeps_coming(open_port: OpenPorts) -> None:
    port = await open_port(body_timeout_s=30.0)
    client = await port.connect()
    whole = post()
    for piece in (whole[:-9], whole[-9:-6], whole[-6:-3]):
        await port.send(client, piece)
        port.later(29.0)
    assert port.refused == []
    port.later(1.1)
    answer = await client.answer()
    assert (answer.status, answer.error["code"]) == (408, "request_too_slow")
    assert "body took too long" in str(answer.error["message"])


async def connections(port: OpenPort) -> list[ClientConnection]:
    await until(lambda: port.port.connections)
    return list(port.port.connections)


async def test_an_idle_connection_is_closed_without_a_word(open_port: OpenPorts) -> None:
    port = await open_port(idle_timeout_s=75.0)
    client = await port.connect()
    await connections(port)
    port.later(75.0)
    await turns()
    assert not client.is_closed
    port.later(0.1)
    await closed(client)
    assert client.raw == b""


async def test_a_connection_is_not_idle_while_it_is_served_and_rests_from_its_end(open_port: OpenPorts) -> None:
    port = await open_port(idle_timeout_s=75.0)
    client = await port.connect()
    client.send(post())
    call = await port.call()
    port.later(500.0)
    call.answer(b"x")
    await client.answer()
    port.later(74.0)
    await turns()
    assert not client.is_closed
    port.later(1.1)
    await closed(client)


async def test_the_next_head_may_wait_for_the_answer_before_it(open_port: OpenPorts) -> None:
    port = await open_port(head_timeout_s=15.0)
    client = await port.connect()
    client.send(post() + b"POST /v1/chat/com")
    call = await port.call()
    port.later(100.0)
    call.answer(b"x")
    await client.answer()
    port.later(14.0)
    assert port.refused == []
    port.later(1.1)
    assert (await client.answer(1)).status == 408


# clients that leave, or are slow


async def test_a_client_that_leaves_is_heard(open_port: OpenPorts) -> None:
    port = await open_port()
    client = await port.connect()
    client.send(post())
    call = await port.call()
    client.leave()
    await until(lambda: call.heard)
    assert call.heard == ["gone"]
    call.write(b"into the void")
    await until(lambda: not port.port.connections)


async def test_a_client_that_leaves_takes_its_pipeline_with_it(open_port: OpenPorts) -> None:
    port = await open_port()
    client = await port.connect()
    client.send(post() * 3)
    call = await port.call()
    client.leave()
    await until(lambda: not port.port.connections)
    await turns()
    assert (len(port.calls), call.heard) == (1, ["gone"])


async def test_a_client_that_does_not_read_pauses_the_answer(open_port: OpenPorts) -> None:
    port = await open_port()
    client = await port.connect()
    client.send(post())
    call = await port.call()
    client.stop_reading()
    call.head()
    written = 0
    while not call.heard:
        call.write(b"x" * 65536)
        written += 65536
        await turns(3)
    assert call.heard == ["pause"]
    client.read_on()
    await until(lambda: call.heard == ["pause", "resume"])
    call.end()
    assert len((await client.answer()).payload) == written


async def test_a_pipeline_without_end_is_not_read_while_one_is_served(open_port: OpenPorts) -> None:
    port = await open_port()
    client = await port.connect()
    client.send(post())
    call = await port.call()
    (connection,) = await connections(port)
    num_sent = 20_000
    client.send(get("/v1/completions") * num_sent)
    await until(lambda: connection._is_reading_paused)
    await turns()
    held = len(connection._reader.waiting)
    assert MAX_BACKLOG_REQUESTS < held < num_sent // 2
    call.answer(b"x")
    await client.answer(num_sent)
    assert {answer.status for answer in client.answers[1:]} == {405}


async def test_large_bodies_that_wait_stop_the_reading(open_port: OpenPorts) -> None:
    port = await open_port()
    client = await port.connect()
    content = {**CHAT, "padding": "x" * 300_000}
    client.send(post(body=content) * 12)
    call = await port.call()
    (connection,) = await connections(port)
    await until(lambda: connection._is_reading_paused)
    assert len(port.calls) == 1
    call.answer(b"x")
    for i in range(1, 12):
        (await port.call(i)).answer(b"x")
    assert (await client.answer(11)).status == 200


# other routes, and the end


async def test_other_routes_are_lent(open_port: OpenPorts) -> None:
    port = await open_port()
    client = await port.connect()
    client.send(get("/elsewhere") + post())
    assert (await client.answer()).status == 404
    (await port.call()).answer(b"x")
    assert (await client.answer(1)).status == 200


async def test_closing_the_port_cancels_what_is_served_and_closes_all(open_port: OpenPorts) -> None:
    port = await open_port()
    clients = [await port.connect() for _ in range(3)]
    for client in clients[:2]:
        client.send(post())
    await port.call(1)
    await port.port.close()
    for client in clients:
        await closed(client)
    assert port.num_cancelled == 2
