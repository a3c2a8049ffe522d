"""A request of the highest class takes the place of bulk that has not begun to answer, through the real proxy."""

import asyncio

from router.core import Band
from tests.fakes import FakeReply, FakeUpstream, Station, specs_of, until
from tests.router.nouns import make_request

ANSWER = b'data: {"choices": []}\n\ndata: [DONE]\n\n'


def ask(station: Station, band: Band, reply: FakeReply) -> "asyncio.Task[None]":
    request = make_request(band.name.lower(), band=band, is_stream=True)
    return asyncio.ensure_future(station.proxy.handle(request, reply))


async def test_the_victim_waits_again_and_is_answered_in_the_end() -> None:
    upstream = FakeUpstream()
    station = Station(upstream, specs_of(["a"]), max_in_flight=1)
    bulk, high = FakeReply(), FakeReply()
    tasks = [ask(station, Band.BULK, bulk)]
    await until(lambda: len(upstream.exchanges) == 1)
    tasks.append(
        asyncio.ensure_future(station.proxy.handle(make_request("high", band=Band.HIGH, is_stream=True), high))
    )
    await until(lambda: len(upstream.exchanges) == 2)
    first, second = upstream.exchanges
    assert first.is_aborted
    assert second.attempt.request_id == "high"
    assert not bulk.payloads, "it has heard nothing, and may yet be answered"
    second.answer(200, ANSWER, (("content-type", "text/event-stream"),))
    await until(lambda: len(upstream.exchanges) == 3)
    third = upstream.exchanges[2]
    assert third.attempt.request_id == "bulk"
    third.answer(200, ANSWER, (("content-type", "text/event-stream"),))
    await asyncio.gather(*tasks)
    assert (bulk.status, high.status) == (200, 200)
    assert station.left_over == {}
    assert station.faults == {}, "it was not the replica's fault"


async def test_an_answer_that_has_begun_is_not_taken_away() -> None:
    upstream = FakeUpstream()
    station = Station(upstream, specs_of(["a"]), max_in_flight=1)
    bulk, high = FakeReply(), FakeReply()
    tasks = [ask(station, Band.BULK, bulk)]
    await until(lambda: len(upstream.exchanges) == 1)
    upstream.exchanges[0].head()
    upstream.exchanges[0].send(b'data: {"choices": []}\n\n')
    tasks.append(
        asyncio.ensure_future(station.proxy.handle(make_request("high", band=Band.HIGH, is_stream=True), high))
    )
    await until(lambda: station.queue.num_waiting)
    assert not upstream.exchanges[0].is_aborted
    upstream.exchanges[0].send(b"data: [DONE]\n\n")
    upstream.exchanges[0].end()
    await until(lambda: len(upstream.exchanges) == 2)
    upstream.exchanges[1].answer(200, ANSWER, (("content-type", "text/event-stream"),))
    await asyncio.gather(*tasks)
    assert (bulk.status, high.status) == (200, 200)
