"""When a connection to a replica is used again, and when it must not be.

The fault: engines behind uvicorn close a connection that was idle for 5 s, perhaps in the very moment in which it is
used again. So it is let go before, and what is lost before any byte of an answer is sent once more, and only once.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from router.core import Outcome
from router.upstream.http import HttpUpstream
from tests.contracts.adapters import over_http
from tests.contracts.conftest import Rig, Rigs
from tests.contracts.hostile import DONE, Behaviour, Call, answers, closes, event, resets, says, streams
from tests.fakes import until

pytestmark = over_http

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@pytest.fixture
def upstream() -> str:
    """These cases are HTTP's own."""
    return "http"


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
            self.rig.script.queue.append(behaviour)
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
    pooled.rig.script.queue.append(closes)
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

    rig.script.queue.append(dies)
    answer = await (await rig.ask()).answer()
    assert answer.payload == b'{"id": 2}'
    assert [call.replica_id for call in rig.script.calls] == [dying.replica_id] * 2 + [rig.replicas[1].id]
    assert rig.station.outcomes == [Outcome.OK, Outcome.UPSTREAM_FAILED, Outcome.OK]


async def test_a_connection_whose_last_read_paused_it_serves_again(pooled: Pooled) -> None:
    """An answer that fills the client's buffer in the very read that ends it must not leave its connection paused in
    the pool: the next request on it would never be heard."""
    rig = pooled.rig
    client = await rig.ask()
    await rig.call(1)
    client.stop_reading()
    [connection] = pooled.upstream._open
    connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n" + b"x" * 200_000)
    assert rig.replies.num_unsent > 64 * 1024
    client.read_on()
    assert len((await client.answer()).payload) == 200_000
    assert await pooled.serve() == b'{"id": 1}'
    assert pooled.num_accepted == 1
