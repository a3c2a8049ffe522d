"""A client that leaves, in every phase.

The faults: routers that notice it at the next chunk only, or never in prefill, while the engine computes for nobody;
counts of requests in flight that leak with it; and replicas that are blamed for it.
"""

from router.core import Outcome
from router.relay import RelayTimes
from tests.contracts.adapters import every_reply, over_http
from tests.contracts.conftest import Rig, Rigs
from tests.contracts.hostile import DONE, Call, answers, event, streams
from tests.fakes import turns, until


def watch_loss(rig: Rig) -> list[int]:
    """How many attempts are connected right after the transport's own disconnect callback, once it has come."""
    seen: list[int] = []
    rig.replies.on_loss = lambda: seen.append(rig.upstreams.num_busy)
    return seen


async def assert_closed_at_once(rig: Rig, call: Call, busy: list[int]) -> None:
    await until(lambda: call.is_dropped)
    await rig.until_idle()
    assert busy == [0], "the upstream is closed in the turn of the loop that hears the client leave"
    assert rig.station.outcomes == [Outcome.CLIENT_GONE]
    assert rig.station.faults == {}
    assert len(rig.script.calls) == 1


@every_reply
async def test_cancel_while_the_prompt_is_read_asks_no_replica(rigs: Rigs) -> None:
    rig = await rigs.open()
    rig.station.prompts.may_read.clear()
    client = await rig.ask(stream=True)
    await until(lambda: rig.station.gate.num_open)
    client.leave()
    await rig.until_idle()
    rig.station.prompts.may_read.set()
    await turns()
    assert rig.script.calls == []
    assert rig.station.leases == []


async def test_cancel_while_queued_frees_the_place_in_line(rigs: Rigs) -> None:
    rig = await rigs.open(num_replicas=1, max_in_flight=1)
    await rig.ask(stream=True)
    call = await rig.call()
    leaver, stayer = await rig.ask(user="leaver"), await rig.ask(user="stayer")
    await until(lambda: rig.station.queue.num_waiting == 2)
    leaver.leave()
    await until(lambda: rig.station.queue.num_waiting == 1)
    rig.script.otherwise = answers({})
    call.close()
    assert (await stayer.answer()).status == 200
    assert b"stayer" in rig.script.calls[1].body


@every_reply
async def test_cancel_while_connecting_drops_the_connection(rigs: Rigs) -> None:
    rig = await rigs.open(num_replicas=0, num_deaf=1)
    client, busy, deaf = await rig.ask(stream=True), watch_loss(rig), rig.replicas[0]
    await until(lambda: deaf.wires)
    client.leave()
    await until(lambda: not deaf.wires)
    await rig.until_idle()
    assert busy == [0]
    assert rig.station.outcomes == [Outcome.CLIENT_GONE]
    assert rig.station.faults == {}


@every_reply
async def test_cancel_in_prefill_closes_the_upstream_in_the_same_turn(rigs: Rigs) -> None:
    rig = await rigs.open()
    client, busy = await rig.ask(stream=True), watch_loss(rig)
    call = await rig.call()
    client.leave()
    await assert_closed_at_once(rig, call, busy)


@every_reply
async def test_cancel_after_an_early_head_of_the_replica_closes_the_upstream(rigs: Rigs) -> None:
    rig = await rigs.open()
    client, busy = await rig.ask(stream=True), watch_loss(rig)
    call = await rig.call()
    call.stream()
    await turns()
    client.leave()
    await assert_closed_at_once(rig, call, busy)


@every_reply
async def test_cancel_in_mid_stream_closes_the_upstream_in_the_same_turn(rigs: Rigs) -> None:
    rig = await rigs.open()
    client, busy = await rig.ask(stream=True), watch_loss(rig)
    call = await rig.call()
    call.stream()
    call.send(event("a"))
    await client.read_until(b"a")
    client.leave()
    await assert_closed_at_once(rig, call, busy)


async def test_cancel_before_a_whole_answer_closes_the_upstream(rigs: Rigs) -> None:
    rig = await rigs.open()
    client, busy = await rig.ask(), watch_loss(rig)
    call = await rig.call()
    client.leave()
    await assert_closed_at_once(rig, call, busy)


@over_http
async def test_cancel_in_the_middle_of_a_whole_answer_closes_the_upstream(rigs: Rigs) -> None:
    rig = await rigs.open()
    client, busy = await rig.ask(), watch_loss(rig)
    call = await rig.call()
    call.whole(1000)
    call.part(b'{"id":')
    await client.read_until(b"id")
    client.leave()
    await assert_closed_at_once(rig, call, busy)


async def test_cancel_after_a_heartbeat_closes_the_upstream(rigs: Rigs) -> None:
    rig = await rigs.open(times=RelayTimes(heartbeat_after_s=1.0))
    client, busy = await rig.ask(stream=True), watch_loss(rig)
    call = await rig.call()
    rig.tick(2.0)
    await client.read_until(b": ")
    client.leave()
    await assert_closed_at_once(rig, call, busy)


@every_reply
async def test_cancel_of_a_reader_that_had_stopped_closes_the_upstream(rigs: Rigs) -> None:
    rig = await rigs.open()
    client, busy = await rig.ask(stream=True), watch_loss(rig)
    call = await rig.call()
    client.stop_reading()
    call.stream()
    for _ in range(100):
        call.send(event("x" * 60_000))
    await until(lambda: any(relay._paused_at for relay in rig.station.relays))
    client.leave()
    await assert_closed_at_once(rig, call, busy)


@every_reply
async def test_cancel_between_two_attempts_makes_no_second(rigs: Rigs) -> None:
    rig = await rigs.open(retry_jitter_s=1e6)
    rig.script.otherwise = answers({}, 500)
    client = await rig.ask(stream=True)
    await until(lambda: rig.station.outcomes == [Outcome.UPSTREAM_FAILED])
    client.leave()
    await rig.until_idle()
    assert len(rig.script.calls) == 1


@every_reply
async def test_a_client_that_leaves_after_its_answer_has_cancelled_nothing(rigs: Rigs) -> None:
    rig = await rigs.open()
    rig.script.otherwise = streams(event("a"), DONE)
    client = await rig.ask(stream=True)
    await client.answer()
    client.leave()
    await rig.until_idle()
    assert rig.station.outcomes == [Outcome.OK]
