"""HTTP/1.1 as replicas speak it, well or badly: interim heads, trailers, no length, and nonsense.

The fault: a router that trips over an answer that is not HTTP, keeps its connection, or tells the client nothing.
"""

from collections.abc import Callable

import pytest

from router.core import Outcome
from tests.contracts.adapters import over_http
from tests.contracts.conftest import Rigs
from tests.contracts.hostile import DONE, Behaviour, Call, answers, event, says
from tests.fakes import turns, until

pytestmark = over_http

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
ENDS_AT_CLOSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"

WELL_FORMED: dict[str, tuple[Behaviour, bytes]] = {
    "interim heads first": (
        says(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK),
        b"{}",
    ),
    "trailers": (
        says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX-Sum: 1\r\n\r\n"),
        b"{}",
    ),
    "chunk extensions": (says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;a=b\r\n{}\r\n0\r\n\r\n"), b"{}"),
    "a length": (says(OK), b"{}"),
    "no reason": (says(b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\n{}"), b"{}"),
    "HTTP/1.0, until the close": (says(b"HTTP/1.0 200 OK\r\n\r\n{}", then_closes=True), b"{}"),
    "until the close": (says(ENDS_AT_CLOSE + event("a") + DONE, then_closes=True), event("a") + DONE),
    "nothing": (says(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), b""),
}


@pytest.fixture
def upstream() -> str:
    """These cases are HTTP's own."""
    return "http"


@pytest.mark.parametrize("form", WELL_FORMED)
async def test_an_answer_of_any_form_passes(rigs: Rigs, form: str) -> None:
    behaviour, body = WELL_FORMED[form]
    rig = await rigs.open()
    rig.script.otherwise = behaviour
    client = await rig.connect()
    for number in range(2):
        client.ask()
        answer = await client.answer(number)
        assert (answer.status, answer.payload, answer.is_complete) == (200, body, True)
        assert not {"link", "x-sum"} & set(answer.headers)
    await rig.until_idle()
    assert rig.station.outcomes == [Outcome.OK, Outcome.OK]


@pytest.mark.parametrize("form", ["interim heads first", "trailers", "a length"])
async def test_an_answer_that_comes_byte_by_byte_passes(rigs: Rigs, form: str) -> None:
    behaviour, body = WELL_FORMED[form]
    rig = await rigs.open()
    client = await rig.ask()
    call = await rig.call()
    for byte in _bytes_of(behaviour):
        call.raw(byte)
        await turns(2)
    assert (await client.answer()).payload == body


async def test_a_stream_until_the_close_that_lacks_its_done_is_a_cut_one(rigs: Rigs) -> None:
    rig = await rigs.open()
    rig.script.otherwise = says(ENDS_AT_CLOSE + event("a"), then_closes=True)
    answer = await (await rig.ask(stream=True)).answer()
    assert answer.error_behind(event("a"))["code"] == "replica_connection_lost"


async def test_a_token_is_passed_on_in_the_very_read_that_brings_it(rigs: Rigs) -> None:
    """Held back for a timer, or to be sent with the next, it would be late for nothing."""
    rig = await rigs.open()
    client = await rig.ask(stream=True)
    (await rig.call()).stream()
    await until(lambda: any(relay.status or relay._incoming.status for relay in rig.station.relays))
    [upstream], [downstream] = rig.upstreams.upstream._open, rig.replies.port.connections
    assert downstream._reply is not None
    told: list[bytes] = []

    class Tap:
        def write(self, data: bytes) -> None:
            told.append(data)

    downstream._reply._transport = Tap()  # type: ignore[assignment]
    upstream.data_received(b"%x\r\n%b\r\n" % (len(event("a")), event("a")))
    assert [told_now.count(event("a")) for told_now in told] == [1]
    client.leave()


async def test_what_was_for_the_replicas_hop_alone_stays_there(rigs: Rigs) -> None:
    rig = await rigs.open()
    hop = (("Connection", "keep-alive, X-Hop"), ("X-Hop", "1"), ("Keep-Alive", "timeout=5"), ("Server", "uvicorn"))
    rig.script.otherwise = answers({}, 200, *hop, ("X-Engine", "kept"))
    headers = (await (await rig.ask()).answer()).headers
    assert not {"x-hop", "keep-alive", "server"} & set(headers)
    assert headers["x-engine"] == "kept"


@pytest.mark.parametrize("sent", [b"HTTP/1.1 2", b"HTTP/1.1 200 OK\r\nContent-Type: text/ev"])
async def test_a_cut_in_the_head_goes_to_another_replica(rigs: Rigs, sent: bytes) -> None:
    rig = await rigs.open()
    rig.script.queue.append(says(sent, then_closes=True))
    rig.script.otherwise = answers({"id": 1})
    answer = await (await rig.ask()).answer()
    assert (answer.status, answer.payload) == (200, b'{"id": 1}')


@pytest.mark.parametrize("lose", [Call.close, Call.reset])
async def test_a_cut_in_mid_chunk_is_told_in_band(rigs: Rigs, lose: Callable[[Call], None]) -> None:
    rig = await rigs.open()
    client = await rig.ask(stream=True)
    call = await rig.call()
    call.stream()
    call.raw(b"fff\r\n" + event("a"))
    await client.read_until(event("a"))
    lose(call)
    assert (await client.answer()).error_behind(event("a"))["code"] == "replica_connection_lost"


async def test_garbage_in_mid_stream_is_told_in_band(rigs: Rigs) -> None:
    rig = await rigs.open()
    client = await rig.ask(stream=True)
    call = await rig.call()
    call.stream()
    call.send(event("a"))
    await client.read_until(event("a"))
    call.raw(b"zzz this is no chunk\r\n")
    assert (await client.answer()).error_behind(event("a"))["code"] == "replica_bad_answer"


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
    rig.script.queue.append(NONSENSE[nonsense])
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
    rig.script.queue.append(says(b'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}{"id": "of somebody else"}'))
    rig.script.otherwise = answers({"id": 1})
    client = await rig.ask()
    assert (await client.answer()).payload == b"{}"
    await until(lambda: rig.script.calls[0].is_dropped)
    client.ask()
    assert (await client.answer(1)).payload == b'{"id": 1}'


def _bytes_of(behaviour: Behaviour) -> list[bytes]:
    """The bytes that a behaviour would send, one by one."""

    class Recorder:
        data = b""

        def raw(self, data: bytes) -> None:
            self.data += data

    recorder = Recorder()
    behaviour(recorder)  # type: ignore[arg-type]
    return [bytes([byte]) for byte in recorder.data]
