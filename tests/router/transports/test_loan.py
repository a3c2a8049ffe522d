import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from router.heads import RequestHead
from router.transports.loan import Loan
from router.transports.reader import Message
from tests.fakes import turns, until
from tests.router.transports.conftest import OpenPorts
from tests.router.transports.port import RawClient, get, post
from tests.router.transports.test_reply import FakeTransport

LARGE = b"0123456789abcdef" * 2**18


class App:
    """Other routes, as aiohttp serves them, and what came to them."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, str], bytes]] = []
        self.was_cancelled = False
        self.hanging = asyncio.Event()
        self.app = web.Application()
        routes = {"": self._echo, "large": self._large, "chunks": self._chunks, "nothing": self._nothing}
        for path, handler in {**routes, "hang": self._hang, "broken": self._broken}.items():
            self.app.router.add_route("*", f"/{path}", handler)

    async def _echo(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.seen.append((request.path_qs, headers, body))
        return web.json_response({"method": request.method, "body": body.decode("latin-1")})

    async def _large(self, _: web.Request) -> web.StreamResponse:
        return web.Response(body=LARGE)

    async def _chunks(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for i in range(5):
            await response.write(b"chunk %d\n" % i)
        return response

    async def _nothing(self, _: web.Request) -> web.StreamResponse:
        return web.Response(status=204)

    async def _hang(self, _: web.Request) -> web.StreamResponse:
        self.hanging.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.was_cancelled = True
        raise AssertionError

    async def _broken(self, _: web.Request) -> web.StreamResponse:
        raise web.HTTPServiceUnavailable


async def test_lent_and_served_requests_take_turns_on_one_connection(open_port: OpenPorts) -> None:
    port = await open_port(App().app)
    client = await port.connect()
    client.send(get("/") + post() + get("/chunks") + post() + get("/nothing") + post("/", b"abc"))
    for i in range(2):
        (await port.call(i)).answer(b"served %d" % i)
    answers = [await client.answer(i) for i in range(6)]
    assert [answer.status for answer in answers] == [200, 200, 200, 200, 204, 200]
    assert [answers[i].payload for i in (1, 3)] == [b"served 0", b"served 1"]
    assert answers[2].payload == b"".join(b"chunk %d\n" % i for i in range(5))
    assert json.loads(answers[5].payload) == {"method": "POST", "body": "abc"}
    assert not client.is_closed


async def test_one_handler_serves_all_loans_of_a_connection(open_port: OpenPorts) -> None:
    port = await open_port(App().app)
    opened: list[asyncio.Protocol] = []
    open_web = port.port.open_web

    def open_noted() -> asyncio.Protocol:
        opened.append(open_web())
        return opened[-1]

    port.port.open_web = open_noted
    client = await port.connect()
    for i in range(5):
        client.send(get("/"))
        assert (await client.answer(i)).status == 200
    assert len(opened) == 1


async def test_a_lent_request_is_whole_with_one_framing(open_port: OpenPorts) -> None:
    app = App()
    port = await open_port(app.app)
    client = await port.connect()
    lines = b"X-Odd: caf\xc3\xa9\r\ntransfer-encoding: chunked\r\nexpect: 100-continue\r\n\r\n"
    client.send(b"POST /?a=b&c HTTP/1.1\r\nhost: a\r\n" + lines + b"2\r\nab\r\n1\r\nc\r\n0\r\nx-trailer: 1\r\n\r\n")
    await client.answer()
    ((path, headers, body),) = app.seen
    assert (path, body) == ("/?a=b&c", b"abc")
    assert headers == {"host": "a", "x-odd": "café", "content-length": "3"}


async def test_an_offer_to_upgrade_is_not_lent(open_port: OpenPorts) -> None:
    app = App()
    port = await open_port(app.app)
    client = await port.connect()
    client.send(get("/", "connection: upgrade", "upgrade: h2c") + get("/"))
    assert [(await client.answer(i)).status for i in range(2)] == [200, 200]
    assert all("upgrade" not in headers for _, headers, _ in app.seen)


@pytest.mark.parametrize("path", ["/", "/large", "/nothing"])
async def test_head_gets_a_head_and_the_connection_goes_on(open_port: OpenPorts, path: str) -> None:
    port = await open_port(App().app)
    client = await port.connect(RawClient)
    client.send(get(path, method="HEAD") + b"nonsense\r\n\r\n")
    await until(lambda: client.is_closed or b"not valid HTTP" in client.raw)
    first, second = bytes(client.raw).split(b"\r\n\r\n", 1)
    assert first.startswith((b"HTTP/1.1 200", b"HTTP/1.1 204"))
    assert second.startswith(b"HTTP/1.1 400")


async def test_a_client_that_wants_no_more_is_closed_after_its_response(open_port: OpenPorts) -> None:
    port = await open_port(App().app)
    client = await port.connect()
    client.send(get("/large", "connection: close"))
    await until(lambda: client.is_closed)
    assert client.answers[0].payload == LARGE


@pytest.mark.parametrize("path", ["/", "/chunks"])
async def test_http_1_0_is_answered_until_the_close(open_port: OpenPorts, path: str) -> None:
    port = await open_port(App().app)
    client = await port.connect()
    client.send(get(path, version="1.0"))
    await until(lambda: client.is_closed)
    assert client.answers[0].is_complete
    assert "transfer-encoding" not in client.answers[0].headers
    assert client.answers[0].payload.endswith((b"}", b"chunk 4\n"))


async def test_http_1_0_may_stay(open_port: OpenPorts) -> None:
    port = await open_port(App().app)
    client = await port.connect()
    for i in range(3):
        client.send(get("/", "connection: keep-alive", version="1.0"))
        assert (await client.answer(i)).status == 200
    assert not client.is_closed


async def test_aiohttps_own_errors_end_the_loan_as_any_answer(open_port: OpenPorts) -> None:
    port = await open_port(App().app)
    client = await port.connect()
    client.send(get("/broken") + get("/none") + get("/"))
    assert [(await client.answer(i)).status for i in range(3)] == [503, 404, 200]


async def test_a_large_response_waits_for_a_client_that_does_not_read(open_port: OpenPorts) -> None:
    port = await open_port(App().app)
    client = await port.connect()
    client.stop_reading()
    client.send(get("/large") + get("/"))
    await turns(200)
    assert len(client.raw) < len(LARGE)
    client.read_on()
    assert (await client.answer()).payload == LARGE
    assert (await client.answer(1)).status == 200


async def test_a_client_that_leaves_cancels_the_handler(open_port: OpenPorts) -> None:
    app = App()
    port = await open_port(app.app)
    client = await port.connect()
    client.send(get("/hang"))
    await app.hanging.wait()
    client.leave()
    await until(lambda: app.was_cancelled)
    assert not port.port.connections


async def test_a_lent_connection_is_not_idle(open_port: OpenPorts) -> None:
    app = App()
    port = await open_port(app.app)
    client = await port.connect()
    client.send(get("/hang"))
    await app.hanging.wait()
    port.later(1000.0)
    await turns()
    assert not client.is_closed


# the transport that aiohttp sees


class FakeSocket(FakeTransport):
    def __init__(self) -> None:
        super().__init__()
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 5)}.get(name, default)


class FakeHandler(asyncio.Protocol):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.heard.append("made")

    def data_received(self, data: bytes) -> None:
        self.heard.append("data")

    def connection_lost(self, exc: Exception | None) -> None:
        self.heard.append("lost")

    def pause_writing(self) -> None:
        self.heard.append("pause")

    def resume_writing(self) -> None:
        self.heard.append("resume")


class Lending:
    """A loan between a fake socket and fake handlers."""

    def __init__(self) -> None:
        self.socket = FakeSocket()
        self.handlers: list[FakeHandler] = []
        self.returns: list[bool] = []
        self.loan = Loan(self.socket, self._open, self.returns.append)

    def _open(self) -> FakeHandler:
        self.handlers.append(FakeHandler())
        return self.handlers[-1]

    def lend(self) -> None:
        self.loan.lend(Message(RequestHead("GET", b"/", "1.1", (("host", "a"),), True, "/"), b""))

    async def respond(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.loan.write(piece)
        await turns(1)


ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


async def test_the_connection_comes_back_once_the_response_has_ended_however_it_is_cut() -> None:
    for i in range(1, len(ANSWER)):
        lending = Lending()
        lending.lend()
        await lending.respond(ANSWER[:i])
        assert lending.returns == []
        await lending.respond(ANSWER[i:])
        assert lending.returns == [True]
        assert lending.socket.sent == ANSWER


async def test_it_does_not_come_back_within_the_handlers_own_write() -> None:
    lending = Lending()
    lending.lend()
    lending.loan.writelines([ANSWER])
    assert lending.returns == []
    await turns(1)
    assert lending.returns == [True]


async def test_an_interim_head_is_no_end() -> None:
    lending = Lending()
    lending.lend()
    await lending.respond(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert lending.returns == []
    await lending.respond(ANSWER)
    assert lending.returns == [True]


async def test_a_response_that_ends_the_connection_says_so() -> None:
    lending = Lending()
    lending.lend()
    await lending.respond(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
    assert lending.returns == [False]


async def test_a_handler_that_closes_within_a_loan_closes_the_socket() -> None:
    lending = Lending()
    lending.lend()
    lending.loan.close()
    assert lending.socket.is_closed
    assert lending.loan.is_closing()


async def test_a_handler_that_closes_between_loans_only_goes_itself() -> None:
    lending = Lending()
    lending.lend()
    await lending.respond(ANSWER)
    lending.loan.close()
    assert not lending.socket.is_closed
    lending.lend()
    assert [handler.heard for handler in lending.handlers] == [["made", "data", "lost"], ["made", "data"]]


async def test_the_handler_hears_of_a_slow_client_and_of_its_loss_once() -> None:
    lending = Lending()
    lending.loan.pause()
    lending.lend()
    lending.loan.pause()
    lending.loan.resume()
    lending.loan.lost(None)
    lending.loan.lost(None)
    lending.loan.resume()
    assert lending.handlers[0].heard == ["made", "data", "pause", "resume", "lost"]


async def test_an_abort_is_the_sockets_and_so_is_the_peer() -> None:
    lending = Lending()
    assert lending.loan.get_extra_info("peername") == ("127.0.0.1", 5)
    lending.loan.abort()
    assert lending.socket.is_aborted
