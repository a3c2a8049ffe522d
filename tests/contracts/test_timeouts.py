"""Every wait ends: for a place, a connection, a first token, the next one, and the whole answer.

The fault: routers with one total timeout of half an hour, or none.
"""

import pytest

from router.core import Outcome
from router.transports.http import PortLimits
from tests.contracts.adapters import every_reply, over_http
from tests.contracts.conftest import Rig, Rigs
from tests.contracts.hostile import DONE, answers, event, streams
from tests.fakes import turns, until


@every_reply
async def test_a_deadline_in_the_queue_is_a_504_where_all_replicas_are_busy(rigs: Rigs) -> None:
    rig = await rigs.open(num_replicas=1, max_in_flight=1, max_wait_s=0.02)
    holder = await rig.ask(stream=True)
    await rig.call()
    answer = await (await rig.ask(stream=True)).answer()
    assert (answer.status, answer.error["code"]) == (504, "deadline_exceeded")
    assert len(rig.script.calls) == 1
    holder.leave()


async def test_a_deadline_in_the_queue_is_a_503_where_no_replica_is_ready(rigs: Rigs) -> None:
    rig = await rigs.open(num_replicas=1, port=PortLimits(request_timeout_s=0.02))
    rig.station.registry.drain(rig.replicas[0].id)
    answer = await (await rig.ask(stream=True)).answer()
    assert (answer.status, answer.error["code"]) == (503, "no_ready_replica")
    assert int(answer.headers["retry-after"]) >= 1


async def test_a_request_is_held_until_a_replica_is_ready(rigs: Rigs) -> None:
    rig = await rigs.open(num_replicas=1)
    registry, member = rig.station.registry, rig.station.member(rig.replicas[0].id)
    registry.drain(member.replica.id)
    client = await rig.ask()
    await until(lambda: rig.station.queue.num_waiting)
    rig.script.otherwise = answers({"id": 1})
    registry.undrain(member.replica.id)
    registry._good(member)
    assert (await client.answer()).payload == b'{"id": 1}'


@pytest.mark.every_reply(but=["websocket"])  # on a socket all are streams, which have had their head by then
async def test_a_deadline_before_the_first_byte_is_a_504(rigs: Rigs) -> None:
    rig = await rigs.open(first_byte_timeout_s=1e4)
    client = await rig.ask(stream=False)
    call = await rig.call()
    rig.tick(601.0)
    answer = await client.answer()
    assert (answer.status, answer.error["code"]) == (504, "deadline_exceeded")
    await assert_expired(rig)
    await until(lambda: call.is_dropped)
    assert len(rig.script.calls) == 1


@every_reply
async def test_a_deadline_in_mid_stream_is_told_in_band(rigs: Rigs) -> None:
    rig = await rigs.open(idle_timeout_s=1e4)
    client = await rig.ask(stream=True)
    call = await rig.call()
    call.stream()
    call.send(event("a"))
    await client.read_until(event("a"))
    rig.tick(601.0)
    assert (await client.answer()).error_behind(event("a"))["code"] == "deadline_exceeded"
    await assert_expired(rig)
    await until(lambda: call.is_dropped)


@over_http
async def test_a_deadline_in_a_whole_answer_shows_by_its_end(rigs: Rigs) -> None:
    rig = await rigs.open(idle_timeout_s=1e4)
    client = await rig.ask()
    call = await rig.call()
    call.whole(100)
    call.part(b"{")
    await client.read_until(b"{")
    rig.tick(601.0)
    assert (await client.answer()).is_cut
    await assert_expired(rig)


async def test_a_replica_without_a_first_byte_is_replaced(rigs: Rigs) -> None:
    rig = await rigs.open(first_byte_timeout_s=30.0)
    client = await rig.ask()
    silent = await rig.call()
    rig.tick(29.0)
    await turns()
    assert not silent.is_dropped
    rig.script.otherwise = answers({"id": 1})
    rig.tick(2.0)
    assert (await client.answer()).payload == b'{"id": 1}'
    await until(lambda: silent.is_dropped)
    assert rig.station.faults == {silent.replica_id: 1}


async def test_a_head_alone_is_no_first_byte(rigs: Rigs) -> None:
    """Some engines send the head at once: prefill may still take its time, and no more than its time."""
    rig = await rigs.open(num_replicas=1, first_byte_timeout_s=30.0, idle_timeout_s=5.0)
    client = await rig.ask()
    call = await rig.call()
    call.whole(100)
    await turns()
    rig.tick(20.0)
    await turns()
    assert not call.is_dropped
    rig.tick(11.0)
    answer = await client.answer()
    assert (answer.status, answer.error["code"]) == (504, "replica_timeout")


@every_reply
async def test_a_replica_silent_in_mid_stream_is_told_in_band_and_blamed(rigs: Rigs) -> None:
    rig = await rigs.open(idle_timeout_s=60.0)
    client = await rig.ask(stream=True)
    call = await rig.call()
    call.stream()
    call.send(event("a"))
    await client.read_until(event("a"))
    rig.tick(59.0)
    call.send(event("b"))
    await client.read_until(event("b"))
    rig.tick(59.0)
    await turns()
    assert not call.is_dropped, "each byte starts the wait anew"
    rig.tick(2.0)
    assert (await client.answer()).error_behind(event("a"), event("b"))["code"] == "replica_timeout"
    await until(lambda: call.is_dropped)
    assert rig.station.faults == {call.replica_id: 1}


@every_reply
async def test_a_connection_that_is_never_made_goes_to_another_replica(rigs: Rigs) -> None:
    rig = await rigs.open(num_replicas=1, num_deaf=1, connect_timeout_s=0.05)
    good, deaf = rig.replicas
    rig.station.member(good.id).replica.foreign_requests = 9
    rig.script.otherwise = streams(event("a"), DONE)
    assert (await (await rig.ask(stream=True)).answer()).payload == event("a") + DONE
    assert [lease.replica.id for lease in rig.station.leases] == [deaf.id, good.id]
    assert rig.station.faults == {deaf.id: 1}


@every_reply
async def test_a_connection_that_is_never_made_is_a_502_where_there_is_no_other(rigs: Rigs) -> None:
    rig = await rigs.open(num_replicas=0, num_deaf=1, connect_timeout_s=0.05)
    answer = await (await rig.ask()).answer()
    assert (answer.status, answer.error["code"]) == (502, "replica_unreachable")


async def test_a_router_that_stops_tells_its_streams(rigs: Rigs) -> None:
    rig = await rigs.open()
    client = await rig.ask(stream=True)
    call = await rig.call()
    call.stream()
    call.send(event("a"))
    await client.read_until(event("a"))
    await rig.replies.port.close()
    assert (await client.answer()).error_behind(event("a"))["code"] == "draining"
    await until(lambda: call.is_dropped)
    assert rig.station.faults == {}


async def assert_expired(rig: Rig) -> None:
    await rig.until_idle()
    assert rig.station.outcomes == [Outcome.EXPIRED]
    assert rig.station.faults == {}
