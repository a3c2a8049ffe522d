"""HTTP/1.1 as replicas speak it: what they may put into an answer, and when their connections may be used again.

The fault: engines behind uvicorn close a connection that was idle for 5 s, perhaps in the very moment in which it is
used again. So it is let go before, and what is lost before any byte of an answer is sent once more, and only once.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from router.core import Outcome
from router.upstream.http import HttpUpstream
from tests.contracts.conftest import Rig, Rigs
from tests.contracts.hostile import DONE, Behaviour, Call, answers, closes, event, resets, says, streams
from tests.fakes import turns, until

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
    assert answer.payload.startswith(event("a") + b'data: {"error":')


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
        def writelines(self, pieces: list[bytes]) -> None:
            told.extend(pieces)

    downstream._reply._transport = Tap()  # type: ignore[assignment]
    upstream.data_received(b"%x\r\n%b\r\n" % (len(event("a")), event("a")))
    assert event("a") in told
    client.leave()


@dataclass(eq=False)
class Pooled:
    """A rig with one replica, and an idle connection to it."""

    rig: Rig

    @property
    def upstream(self) -> HttpUpstream:
        return self.rig.upstreams.upstream

    @property
    def num_accepted(self) -> int:
        return self.rig.replicas[0].num_accepted

    @property
    def num_idle(self) -> int:
        return sum(map(len, self.upstream._idle.values()))

    async def serve(self, behaviour: Behaviour | None = None) -> bytes:
        if behaviour is not None:
            self.rig.script.script.append(behaviour)
        self.rig.script.otherwise = answers({"id": 1})
        payload = (await (await self.rig.ask()).answer()).payload
        self.rig.script.otherwise = None
        return payload


@pytest.fixture
async def pooled(rigs: Rigs) -> Pooled:
    pooled = Pooled(await rigs.open(num_replicas=1))
    await pooled.serve()
    assert (pooled.num_accepted, pooled.num_idle) == (1, 1)
    return pooled


@pytest.mark.parametrize("behaviour", [answers({}), answers({}, 400), answers({}, 500), streams(event("a"), DONE)])
async def test_a_connection_serves_again_after_a_whole_answer(pooled: Pooled, behaviour: Behaviour) -> None:
    for _ in range(3):
        await pooled.serve(behaviour)
    assert pooled.num_accepted == 1


UNUSABLE: dict[str, Behaviour] = {
    "it says so": answers({}, 200, ("Connection", "close")),
    "it is HTTP/1.0": says(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}"),
    "it has more to say": says(OK + OK),
    "it has garbage to say": says(OK + b"garbage"),
    "both lengths": says(
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    ),
    "its answer was cut": says(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", then_closes=True),
}


@pytest.mark.parametrize("reason", UNUSABLE)
async def test_a_connection_is_not_used_again_where(pooled: Pooled, reason: str) -> None:
    await pooled.serve(UNUSABLE[reason])
    await until(lambda: not pooled.rig.replicas[0].wires)
    assert pooled.num_idle == 0
    assert await pooled.serve() == b'{"id": 1}'
    assert pooled.num_accepted == 2


async def test_a_connection_is_not_used_again_after_a_client_left(pooled: Pooled) -> None:
    client = await pooled.rig.ask()
    call = await pooled.rig.call(1)
    client.leave()
    await until(lambda: call.is_dropped)
    assert await pooled.serve() == b'{"id": 1}'
    assert pooled.num_accepted == 2


async def test_an_idle_connection_that_says_something_is_dropped(pooled: Pooled) -> None:
    pooled.rig.script.calls[0].raw(OK)
    await until(lambda: pooled.num_idle == 0)
    assert await pooled.serve() == b'{"id": 1}'


async def test_an_idle_connection_that_its_replica_closes_is_forgotten(pooled: Pooled) -> None:
    pooled.rig.script.calls[0].close()
    await until(lambda: pooled.num_idle == 0)
    assert not pooled.upstream._open
    assert await pooled.serve() == b'{"id": 1}'


async def test_a_connection_idle_for_nearly_4_seconds_is_used_and_a_longer_one_is_not(pooled: Pooled) -> None:
    pooled.rig.station.clock.now += 3.8
    await pooled.serve()
    assert pooled.num_accepted == 1
    pooled.rig.station.clock.now += 4.0
    await pooled.serve()
    assert pooled.num_accepted == 2


async def test_a_sweep_closes_what_idled_too_long_and_nothing_else(pooled: Pooled) -> None:
    pooled.rig.station.clock.now += 3.0
    pooled.upstream.sweep()
    assert pooled.num_idle == 1
    client = await pooled.rig.ask()  # takes it
    call = await pooled.rig.call(1)
    pooled.rig.station.clock.now += 60.0
    pooled.upstream.sweep()
    call.json({"id": 2})
    assert (await client.answer()).payload == b'{"id": 2}'
    assert pooled.num_accepted == 1
    pooled.rig.station.clock.now += 4.0
    pooled.upstream.sweep()
    await until(lambda: not pooled.rig.replicas[0].wires)
    assert pooled.num_idle == 0


async def test_the_connection_used_last_is_used_first(pooled: Pooled) -> None:
    """So that the others may age."""
    clients = [await pooled.rig.ask(), await pooled.rig.ask()]
    calls = [await pooled.rig.call(1), await pooled.rig.call(2)]
    for client, call in zip(clients, calls, strict=True):
        call.json({})
        await client.answer()
    for _ in range(3):
        await pooled.serve()
    assert pooled.num_idle == 2
    assert {id(call._wire) for call in pooled.rig.script.calls[3:]} == {id(calls[1]._wire)}


@pytest.mark.parametrize("dies", [closes, resets], ids=["closed", "reset"])
async def test_a_reused_connection_that_dies_before_any_byte_is_made_good_once(
    pooled: Pooled, dies: Callable[[Call], None]
) -> None:
    assert await pooled.serve(dies) == b'{"id": 1}'
    assert pooled.num_accepted == 2
    assert len(pooled.rig.script.calls) == 3
    await pooled.rig.until_idle()
    assert pooled.rig.station.outcomes == [Outcome.OK, Outcome.OK], "it was no attempt of its own"
    assert pooled.rig.station.faults == {}


async def test_a_request_is_made_good_once_and_not_twice(pooled: Pooled) -> None:
    pooled.rig.script.script.append(closes)
    assert b"replica_connection_lost" in await pooled.serve(closes)
    assert len(pooled.rig.script.calls) == 3


async def test_a_fresh_connection_that_dies_is_not_made_good(rigs: Rigs) -> None:
    pooled = Pooled(await rigs.open(num_replicas=1))
    assert b"replica_connection_lost" in await pooled.serve(closes)
    assert len(pooled.rig.script.calls) == 1


@pytest.mark.parametrize(
    "data", [b"H", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"]
)
async def test_nothing_is_made_good_once_a_byte_has_come(pooled: Pooled, data: bytes) -> None:
    assert b"replica_connection_lost" in await pooled.serve(says(data, then_closes=True))
    assert len(pooled.rig.script.calls) == 2


async def test_a_client_that_leaves_while_its_request_is_made_good_is_heeded(pooled: Pooled) -> None:
    """The attempt has no connection at that moment: the one on its way must not carry it."""
    await pooled.rig.ask()
    (await pooled.rig.call(1)).reset()
    await until(lambda: pooled.upstream._resends)
    next(iter(pooled.rig.station.relays)).gone()
    await until(lambda: not pooled.upstream._resends)
    await until(lambda: not pooled.rig.replicas[0].wires)
    assert len(pooled.rig.script.calls) == 2
    assert pooled.rig.station.outcomes == [Outcome.OK, Outcome.CLIENT_GONE]


async def test_a_lost_replica_that_cannot_be_made_good_is_replaced(rigs: Rigs) -> None:
    rig = await rigs.open(num_replicas=2)
    rig.station.member(rig.replicas[1].id).replica.foreign_requests = 9
    rig.script.otherwise = answers({"id": 1})
    await (await rig.ask()).answer()
    dying = rig.script.calls[0]

    def dies(call: Call) -> None:
        rig.script.otherwise = answers({"id": 2})
        rig.replicas[0].stop_listening()
        call.close()

    rig.script.script.append(dies)
    answer = await (await rig.ask()).answer()
    assert answer.payload == b'{"id": 2}'
    assert [call.replica_id for call in rig.script.calls] == [dying.replica_id] * 2 + [rig.replicas[1].id]
    assert rig.station.outcomes == [Outcome.OK, Outcome.UPSTREAM_FAILED, Outcome.OK]


def _bytes_of(behaviour: Behaviour) -> list[bytes]:
    """The bytes that a behaviour would send, one by one."""

    class Recorder:
        data = b""

        def raw(self, data: bytes) -> None:
            self.data += data

    recorder = Recorder()
    behaviour(recorder)  # type: ignore[arg-type]
    return [bytes([byte]) for byte in recorder.data]
