"""A stream that waits long for its first token.

The fault: proxies between client and router drop a connection that is silent for a minute, so a stream that is queued
or in prefill gets its head and comments meanwhile. Its status is then spent: what goes wrong later is told in band.
"""

from router.core import Outcome
from router.relay import RelayTimes
from tests.contracts.adapters import over_http
from tests.contracts.conftest import Rigs
from tests.contracts.hostile import DONE, event, streams
from tests.fakes import turns, until

TIMES = RelayTimes(heartbeat_after_s=10.0, heartbeat_interval_s=15.0)
BEAT = b": waiting for a replica\n\n"


async def test_a_stream_queued_for_long_gets_a_head_a_comment_then_why_and_its_answer(rigs: Rigs) -> None:
    rig = await rigs.open(num_replicas=1, max_in_flight=1, times=TIMES)
    first = await rig.ask(stream=True)
    call = await rig.call()
    call.stream()
    call.send(event("first"))
    await first.read_until(b"first")
    second = await rig.ask(("X-Request-Id", "my-id"), stream=True)
    await until(lambda: rig.station.queue.num_waiting)
    rig.tick(9.0)
    await turns()
    assert second.answers == []
    rig.tick(2.0)
    head = await second.head()
    assert (head.status, head.headers["x-request-id"]) == (200, "my-id")
    assert head.headers["content-type"].startswith("text/event-stream")
    assert head.headers["x-pointsman-queue-position"] == "1"
    beat = await second.read_until(b"\n\n")
    assert beat == b": waiting for a replica; x-pointsman-queue-position: 1\n\n"
    rig.script.otherwise = streams(event("a"), DONE)
    call.send(DONE)
    call.end()
    answer = await second.answer()
    comments, content = answer.payload.removeprefix(beat).split(b"data: ", 1)
    assert b"data: " + content == event("a") + DONE
    assert f": x-pointsman-replica: {call.replica_id}\n\n".encode() in comments
    assert b": x-pointsman-reason: policy=" in comments
    assert all(line.startswith(b":") for line in comments.split(b"\n\n") if line)


async def test_comments_come_at_the_interval_until_the_content_does(rigs: Rigs) -> None:
    rig = await rigs.open(times=TIMES)
    client = await rig.ask(stream=True)
    call = await rig.call()
    for number, seconds in enumerate((10.0, 15.0, 15.0), start=1):
        rig.tick(seconds - 1.0)
        rig.tick(1.0)
        await client.read_until(BEAT * number)
    call.stream()
    call.send(event("a"))
    await client.read_until(event("a"))
    rig.tick(50.0)
    call.send(DONE)
    call.end()
    assert (await client.answer()).payload.endswith(event("a") + DONE), "no comment once it flows"


async def test_a_whole_answer_gets_no_heartbeat(rigs: Rigs) -> None:
    rig = await rigs.open(times=TIMES)
    client = await rig.ask(stream=False)
    call = await rig.call()
    rig.tick(60.0)
    await turns()
    assert client.answers == []
    call.json({"id": 1})
    assert (await client.answer()).payload == b'{"id": 1}'


async def test_a_replica_that_fails_after_an_early_head_is_still_replaced(rigs: Rigs) -> None:
    rig = await rigs.open(times=TIMES)
    client = await rig.ask(stream=True)
    call = await rig.call()
    rig.tick(11.0)
    await client.read_until(BEAT)
    rig.script.otherwise = streams(event("a"), DONE)
    call.json({}, 500)
    answer = await client.answer()
    assert answer.payload.endswith(event("a") + DONE)
    assert rig.script.calls[1].replica_id.encode() in answer.payload
    assert call.replica_id.encode() not in answer.payload


async def test_an_error_after_an_early_head_is_told_in_band_in_the_replicas_words(rigs: Rigs) -> None:
    rig = await rigs.open(times=TIMES)
    client = await rig.ask(stream=True)
    call = await rig.call()
    rig.tick(11.0)
    await client.read_until(BEAT)
    call.json({"error": {"message": "`temperature` is negative", "type": "invalid_request_error", "param": "t"}}, 400)
    error = (await client.answer()).error_behind()
    assert error["message"] == "`temperature` is negative"
    assert (error["type"], error["param"]) == ("invalid_request_error", "t")
    await rig.until_idle()
    assert rig.station.faults == {}


async def test_a_cut_after_an_early_head_is_told_in_band(rigs: Rigs) -> None:
    rig = await rigs.open(num_replicas=1, times=TIMES)
    client = await rig.ask(stream=True)
    call = await rig.call()
    rig.tick(11.0)
    await client.read_until(BEAT)
    call.close()
    assert (await client.answer()).error_behind()["code"] == "replica_connection_lost"


@over_http
async def test_an_answer_that_is_no_stream_after_an_early_head_is_told_in_band(rigs: Rigs) -> None:
    rig = await rigs.open(num_replicas=1, times=TIMES)
    client = await rig.ask(stream=True)
    call = await rig.call()
    rig.tick(11.0)
    await client.read_until(BEAT)
    call.json({"id": 1})
    assert (await client.answer()).error_behind()["code"] == "replica_bad_answer"


async def test_a_deadline_after_an_early_head_is_told_in_band(rigs: Rigs) -> None:
    rig = await rigs.open(times=TIMES)
    client = await rig.ask(stream=True)
    await rig.call()
    rig.tick(11.0)
    await client.read_until(BEAT)
    rig.tick(600.0)
    assert (await client.answer()).error_behind()["code"] == "deadline_exceeded"
    await rig.until_idle()
    assert rig.station.outcomes == [Outcome.EXPIRED]
