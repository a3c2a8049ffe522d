"""A replica that dies, at every point of its answer.

The faults: a stream cut upstream that looks complete to the client, for whom a stream that simply ends is a whole one;
a finish_reason that the router invents; half an event before the error; and a retry after content was sent.
"""

from collections.abc import Callable

import pytest

from router.core import Outcome
from tests.contracts.adapters import every_reply, over_http
from tests.contracts.conftest import Rigs
from tests.contracts.hostile import DONE, Call, answers, closes, event, resets, streams
from tests.fakes import until

LOSSES = {"closed": Call.close, "reset": Call.reset}


@pytest.fixture(params=LOSSES)
def lose(request: pytest.FixtureRequest) -> Callable[[Call], None]:
    return LOSSES[request.param]


@every_reply
@pytest.mark.parametrize("behaviour", [closes, resets], ids=["closed", "reset"])
async def test_a_cut_before_the_head_goes_to_another_replica(rigs: Rigs, behaviour: Callable[[Call], None]) -> None:
    rig = await rigs.open()
    rig.script.queue.append(behaviour)
    rig.script.otherwise = streams(event("a"), DONE)
    answer = await (await rig.ask(stream=True)).answer()
    assert answer.payload == event("a") + DONE
    first, second = rig.script.calls
    assert first.replica_id != second.replica_id
    assert rig.station.outcomes == [Outcome.UPSTREAM_FAILED, Outcome.OK]


@every_reply
async def test_a_cut_after_the_head_alone_goes_to_another_replica(rigs: Rigs, lose: Callable[[Call], None]) -> None:
    """Some engines send the head at once and the first token much later: nothing has been promised yet."""
    rig = await rigs.open()
    client = await rig.ask(stream=True)
    call = await rig.call()
    call.stream()
    rig.script.otherwise = streams(event("b"), DONE)
    lose(call)
    answer = await client.answer()
    assert (answer.status, answer.payload) == (200, event("b") + DONE)
    assert len(rig.script.calls) == 2


@every_reply
async def test_a_cut_in_the_very_first_event_goes_to_another_replica(rigs: Rigs, lose: Callable[[Call], None]) -> None:
    rig = await rigs.open()
    client = await rig.ask(stream=True)
    call = await rig.call()
    call.stream()
    call.send(event("a")[:-9])
    rig.script.otherwise = streams(event("b"), DONE)
    await until(lambda: rig.station.leases[0].has_started)
    lose(call)
    assert (await client.answer()).payload == event("b") + DONE
    assert rig.station.leases[1].has_started, "the second attempt has a first token of its own"


@every_reply
async def test_a_cut_at_an_event_boundary_is_told_in_band(rigs: Rigs, lose: Callable[[Call], None]) -> None:
    rig = await rigs.open()
    client = await rig.ask(stream=True)
    call = await rig.call()
    call.stream()
    call.send(event("a"))
    call.send(event("b"))
    await client.read_until(event("b"))
    lose(call)
    error = (await client.answer()).error_behind(event("a"), event("b"))
    assert (error["code"], error["type"]) == ("replica_connection_lost", "upstream_error")
    await rig.until_idle()
    assert rig.station.outcomes == [Outcome.CUT_MID_STREAM]
    assert rig.station.faults == {call.replica_id: 1}
    assert len(rig.script.calls) == 1, "nothing is retried after the first content byte"


@every_reply
async def test_a_cut_in_mid_event_shows_no_half_event(rigs: Rigs, lose: Callable[[Call], None]) -> None:
    rig = await rigs.open()
    client = await rig.ask(stream=True)
    call = await rig.call()
    call.stream()
    call.send(event("a") + event("half")[:-7])
    await client.read_until(event("a"))
    lose(call)
    answer = await client.answer()
    assert answer.error_behind(event("a"))["code"] == "replica_connection_lost"
    assert b"half" not in answer.payload


@every_reply
async def test_a_stream_that_ends_without_done_is_told_in_band(rigs: Rigs) -> None:
    rig = await rigs.open()
    rig.script.otherwise = streams(event("a"))
    answer = await (await rig.ask(stream=True)).answer()
    assert answer.error_behind(event("a"))["code"] == "replica_connection_lost"
    await rig.until_idle()
    assert rig.station.outcomes == [Outcome.CUT_MID_STREAM]


@pytest.mark.every_reply(but=["websocket"])  # a socket tells the end when the replica has ended
async def test_a_loss_behind_done_is_no_loss(rigs: Rigs, lose: Callable[[Call], None]) -> None:
    """The client has had its last word: an error behind it would belie a whole answer."""
    rig = await rigs.open()
    client = await rig.ask(stream=True)
    call = await rig.call()
    call.stream()
    call.send(event("a") + DONE)
    await client.read_until(DONE)
    lose(call)
    answer = await client.answer()
    assert answer.payload == event("a") + DONE
    assert answer.is_complete
    await rig.until_idle()
    assert rig.station.outcomes == [Outcome.OK]
    assert rig.station.faults == {}


@over_http
async def test_a_whole_answer_that_is_cut_shows_it_by_its_end(rigs: Rigs, lose: Callable[[Call], None]) -> None:
    """A status cannot be taken back: the missing rest must at least be seen."""
    rig = await rigs.open()
    client = await rig.ask()
    call = await rig.call()
    call.whole(1000)
    call.part(b'{"id":')
    await client.read_until(b"id")
    lose(call)
    answer = await client.answer()
    assert (answer.payload, answer.is_cut, answer.is_complete) == (b'{"id":', True, False)
    await rig.until_idle()
    assert rig.station.outcomes == [Outcome.CUT_MID_STREAM]
    assert len(rig.script.calls) == 1


async def test_a_whole_answer_that_is_cut_before_its_body_goes_to_another_replica(
    rigs: Rigs, lose: Callable[[Call], None]
) -> None:
    rig = await rigs.open()
    client = await rig.ask()
    call = await rig.call()
    call.whole(1000)
    rig.script.otherwise = answers({"id": 2})
    lose(call)
    answer = await client.answer()
    assert (answer.status, answer.payload) == (200, b'{"id": 2}')


async def test_a_cut_with_no_other_replica_is_a_502(rigs: Rigs) -> None:
    rig = await rigs.open(num_replicas=1)
    rig.script.otherwise = closes
    answer = await (await rig.ask(stream=True)).answer()
    assert answer.status == 502
    assert answer.error["code"] == "replica_connection_lost"
    assert answer.error["type"] == "upstream_error"
