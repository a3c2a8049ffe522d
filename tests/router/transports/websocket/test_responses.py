"""OpenAI's WebSocket mode of Responses, spoken by a real client over a real connection."""

import json
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from router.transports.websocket.chat import ChatLimits
from router.transports.websocket.responses import MAX_NAMED_LANES, MAX_RUNNING
from router.transports.websocket.sockets import RESPONSES_PATH, STRANGER_S
from tests.contracts.hostile import DONE
from tests.fakes import FakeExchange
from tests.router.jobs.rig import patiently
from tests.router.transports.dialects.rig import stream, whole
from tests.router.transports.websocket.rig import Client, Rig, open_rig


async def create(client: Client, text: str = "hi", **fields: object) -> None:
    await client.say("response.create", model="m", input=text, **fields)


async def until_type(client: Client, type: str, stream_id: str | None = None) -> list[dict[str, Any]]:
    """All that is heard, to the first of that type on that stream."""
    heard = [await client.hear()]
    while (heard[-1]["type"], heard[-1].get("stream_id")) != (type, stream_id):
        heard.append(await client.hear())
    return heard


def answer(exchange: FakeExchange, *texts: str) -> None:
    exchange.head()
    exchange.send(stream(*({"content": text} for text in texts)))
    exchange.end()


def begin(exchange: FakeExchange, text: str) -> None:
    exchange.head()
    exchange.send(b'data: {"choices":[{"delta":{"content":"%b"}}]}\n\n' % text.encode())


async def said(rig: Rig, number: int) -> list[str]:
    """What was said to a replica, message by message."""
    body = json.loads((await rig.exchange(number)).attempt.body)
    return [each["content"] for each in body["messages"]]


async def test_a_response_is_told_in_the_same_events_as_over_sse() -> None:
    async with open_rig() as rig:
        client = await rig.connect(RESPONSES_PATH)
        await create(client, temperature=0.5, instructions="Be brief.")
        exchange = await rig.exchange()
        body = json.loads(exchange.attempt.body)
        assert (body["stream"], body["temperature"], body["messages"][0]["content"]) == (True, 0.5, "Be brief.")
        answer(exchange, "He", "y")
        heard = await until_type(client, "response.completed")
        assert [each["sequence_number"] for each in heard] == list(range(len(heard)))
        assert {"type", "stream_id"} & heard[0].keys() == {"type"}
        assert heard[-1]["response"]["output"][0]["content"][0]["text"] == "Hey"
        await client.say("response.cancel", response_id="none")
        assert (await client.hear_type("error"))["status"] == 404  # and nothing between
        await client.wire.close()


async def test_a_turn_follows_another_also_where_nothing_is_stored() -> None:
    async with open_rig() as rig:
        client = await rig.connect(RESPONSES_PATH)
        await create(client, "one", store=False)
        answer(await rig.exchange(), "two")
        id = (await until_type(client, "response.completed"))[-1]["response"]["id"]
        assert await rig.desk.archive.get("default", id) is None
        await create(client, "three", previous_response_id=id, store=False)
        assert await said(rig, 1) == ["one", "two", "three"]
        answer(await rig.exchange(1), "four")
        await until_type(client, "response.completed")
        other = await rig.connect(RESPONSES_PATH)
        await create(other, "three", previous_response_id=id)
        error = await other.hear_type("error")
        assert (error["status"], error["error"]["code"]) == (400, "previous_response_not_found")
        await client.wire.close()
        await other.wire.close()


async def test_what_is_stored_is_followed_from_another_socket() -> None:
    async with open_rig() as rig:
        client = await rig.connect(RESPONSES_PATH)
        await create(client, "one")
        answer(await rig.exchange(), "two")
        id = (await until_type(client, "response.completed"))[-1]["response"]["id"]
        other = await rig.connect(RESPONSES_PATH)
        await create(other, "three", previous_response_id=id)
        assert await said(rig, 1) == ["one", "two", "three"]
        await client.wire.close()
        await other.wire.close()


async def test_streams_run_side_by_side_and_each_in_order() -> None:
    async with open_rig() as rig:
        client = await rig.connect(RESPONSES_PATH)
        await create(client, "a1", stream_id="a")
        await create(client, "a2", stream_id="a")
        await create(client, "b1", stream_id="b")
        await create(client, "c1")
        assert [(await said(rig, number))[0] for number in range(3)] == ["a1", "b1", "c1"]
        begin(await rig.exchange(1), "x")
        heard = await until_type(client, "response.output_text.delta", "b")
        assert {each["stream_id"] for each in heard} == {"b"}
        answer(await rig.exchange(0), "y")
        await until_type(client, "response.completed", "a")
        assert (await said(rig, 3))[0] == "a2"
        answer(await rig.exchange(2), "z")
        assert "stream_id" not in (await until_type(client, "response.completed"))[-1]
        await client.wire.close()


async def test_no_more_than_so_many_run_at_once_and_the_others_wait() -> None:
    async with open_rig(max_in_flight=64) as rig:
        client = await rig.connect(RESPONSES_PATH)
        for number in range(MAX_RUNNING + 1):
            await create(client, str(number), stream_id=f"s{number}")
        answer(await rig.exchange(MAX_RUNNING - 1), "x")
        await until_type(client, "response.completed", f"s{MAX_RUNNING - 1}")
        assert (await said(rig, MAX_RUNNING))[0] == str(MAX_RUNNING)
        await client.wire.close()


async def test_a_prompt_is_prepared_and_followed() -> None:
    async with open_rig() as rig:
        client = await rig.connect(RESPONSES_PATH)
        await create(client, "one", generate=False, store=False)
        exchange = await rig.exchange()
        body = json.loads(exchange.attempt.body)
        assert (body["max_tokens"], "stream" in body) == (1, False)
        exchange.answer(200, whole({"content": "x"}))
        heard = await until_type(client, "response.completed")
        assert [each["type"] for each in heard] == ["response.created", "response.in_progress", "response.completed"]
        assert heard[-1]["response"]["output"] == []
        await create(client, "two", previous_response_id=heard[-1]["response"]["id"])
        assert await said(rig, 1) == ["one", "two"]
        await client.wire.close()


async def test_one_is_cancelled_and_the_next_of_its_stream_begins() -> None:
    async with open_rig() as rig:
        client = await rig.connect(RESPONSES_PATH)
        await create(client, "one", stream_id="a")
        await create(client, "two", stream_id="a")
        exchange = await rig.exchange()
        begin(exchange, "x")
        heard = await until_type(client, "response.output_text.delta", "a")
        await client.say("response.cancel", response_id=heard[0]["response"]["id"])
        [last] = await until_type(client, "response.failed", "a")
        assert last["sequence_number"] == heard[-1]["sequence_number"] + 1
        assert (last["response"]["status"], last["response"]["error"]["code"]) == ("cancelled", "response_cancelled")
        assert exchange.is_aborted
        assert (await said(rig, 1))[0] == "two"
        await client.wire.close()


async def test_another_sockets_response_is_not_cancelled() -> None:
    async with open_rig() as rig:
        one, other = await rig.connect(RESPONSES_PATH), await rig.connect(RESPONSES_PATH)
        await create(one)
        exchange = await rig.exchange()
        begin(exchange, "x")
        id = (await until_type(one, "response.output_text.delta"))[0]["response"]["id"]
        await other.say("response.cancel", response_id=id)
        error = await other.hear_type("error")
        assert (error["status"], error["error"]["code"]) == (404, "response_not_found")
        exchange.send(DONE)
        exchange.end()
        await until_type(one, "response.completed")
        await one.wire.close()
        await other.wire.close()


async def test_a_dropped_one_is_resumed_on_another_socket_and_can_be_cancelled_there() -> None:
    async with open_rig() as rig:
        client = await rig.connect(RESPONSES_PATH)
        await create(client, store=True)
        exchange = await rig.exchange()
        begin(exchange, "a")
        heard = await until_type(client, "response.output_text.delta")
        id, seen = heard[0]["response"]["id"], heard[-1]["sequence_number"]
        client.wire.transport.abort()
        await patiently(lambda: rig.desk.runs.held[id].left_at is not None)
        again = await rig.connect(RESPONSES_PATH)
        await again.say("response.resume", response_id=id, starting_after=seen, stream_id="r")
        exchange.send(b'data: {"choices":[{"delta":{"content":"b"}}]}\n\n')
        event = await again.hear()
        assert (event["delta"], event["sequence_number"], event["stream_id"]) == ("b", seen + 1, "r")
        await again.say("response.cancel", response_id=id)
        last = (await until_type(again, "response.failed", "r"))[-1]
        assert last["response"]["status"] == "cancelled"
        assert exchange.is_aborted
        await again.wire.close()


async def test_a_client_that_leaves_lets_go_of_all_that_it_asked_for() -> None:
    async with open_rig() as rig:
        client = await rig.connect(RESPONSES_PATH)
        await create(client, stream_id="a")
        await create(client, "waits", stream_id="a")
        await create(client, stream_id="b")
        exchanges = [await rig.exchange(0), await rig.exchange(1)]
        begin(exchanges[0], "x")
        client.wire.transport.abort()
        await patiently(lambda: all(each.is_aborted for each in exchanges))
        await rig.until_idle()
        assert len(rig.upstream.exchanges) == 2


@pytest.mark.parametrize(
    ("message", "param", "stream_id"),
    [
        ("{", None, None),
        ("[" * 100_000, None, None),
        ('{"type":"other","stream_id":"s"}', "type", "s"),
        ('{"type":"response.steer","previous_response_id":"x","input":"y"}', "type", None),
        ('{"type":"response.create","stream_id":"s","input":"x"}', "model", "s"),
        ('{"type":"response.create","model":"m"}', "input", None),
        ('{"type":"response.create","model":"m","input":"x","background":true}', "background", None),
        ('{"type":"response.create","model":"m","input":"x","stream_id":""}', "stream_id", ""),
        ('{"type":"response.create","model":"m","input":"x","stream_id":"a b"}', "stream_id", "a b"),
        ('{"type":"response.create","model":"m","input":"x","stream_id":7}', "stream_id", None),
        ('{"type":"response.create","model":"m","input":"x","generate":"no"}', "generate", None),
        ('{"type":"response.create","model":"m","input":[{"role":"robot"}]}', "input[0].role", None),
        ('{"type":"response.create","model":"m","input":"x","tools":[{"type":"web_search"}]}', "tools[0].type", None),
        ('{"type":"response.cancel"}', "response_id", None),
        ('{"type":"response.resume","response_id":"r","starting_after":-1}', "starting_after", None),
        ('{"type":"auth","key":""}', "key", None),
    ],
)
async def test_a_wrong_message_is_told_and_the_socket_lives_on(
    message: str, param: str | None, stream_id: str | None
) -> None:
    async with open_rig() as rig:
        client = await rig.connect(RESPONSES_PATH)
        await client.wire.send(message)
        heard = await client.hear_type("error")
        assert (heard["status"], heard["error"]["type"], heard["error"]["param"]) == (
            400,
            "invalid_request_error",
            param,
        )
        assert heard.get("stream_id") == stream_id
        await create(client)
        answer(await rig.exchange(), "fine")
        await until_type(client, "response.completed")
        await client.wire.close()


async def test_a_replicas_refusal_and_an_unknown_model_are_errors_of_their_stream() -> None:
    async with open_rig() as rig:
        client = await rig.connect(RESPONSES_PATH)
        await client.say("response.create", model="other", input="hi", stream_id="a")
        heard = await client.hear_type("error")
        assert (heard["status"], heard["error"]["code"], heard["stream_id"]) == (404, "model_not_found", "a")
        await create(client, stream_id="b")
        words = {"message": "no", "type": "invalid_request_error", "param": "temperature", "code": None}
        (await rig.exchange()).answer(400, json.dumps({"error": words}).encode())
        assert await client.hear() == {"type": "error", "status": 400, "error": words, "stream_id": "b"}
        await client.wire.close()


async def test_too_many_streams_and_too_many_requests_are_refused() -> None:
    async with open_rig(chat=ChatLimits(max_requests=MAX_NAMED_LANES + 1), max_in_flight=64) as rig:
        client = await rig.connect(RESPONSES_PATH)
        for number in range(MAX_NAMED_LANES):
            await create(client, stream_id=f"s{number}")
        await create(client, stream_id="more")
        assert (await client.hear_type("error"))["error"]["code"] == "websocket_stream_limit_reached"
        await create(client)
        await create(client)
        heard = await client.hear_type("error")
        assert (heard["status"], heard["error"]["code"]) == (429, "queue_full")
        await client.wire.close()


async def test_a_slow_reader_stops_the_replica() -> None:
    async with open_rig() as rig:
        client = await rig.connect(RESPONSES_PATH)
        await create(client)
        exchange = await rig.exchange()
        exchange.head()
        [talk] = [visit.talk for visit in rig.sockets._visits.values()]
        talk.pause()
        assert exchange.is_paused
        talk.resume()
        assert not exchange.is_paused
        await client.wire.close()


async def test_what_is_open_is_answered_while_the_router_stops_and_nothing_new_begins() -> None:
    async with open_rig() as rig:
        client, idle = await rig.connect(RESPONSES_PATH), await rig.connect(RESPONSES_PATH)
        await create(client, stream_id="a")
        exchange = await rig.exchange()
        rig.sockets.drain()
        with pytest.raises(ConnectionClosed) as closed:
            await idle.hear()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012
        await create(client, stream_id="b")
        assert (await client.hear_type("error"))["error"]["code"] == "websocket_connection_limit_reached"
        answer(exchange, "x")
        await until_type(client, "response.completed", "a")
        with pytest.raises(ConnectionClosed):
            await client.hear()


async def test_who_shows_no_key_is_told_and_then_closed_and_who_shows_one_stays() -> None:
    async with open_rig(key="sk-good") as rig:
        stranger = await rig.connect(RESPONSES_PATH)
        known = await rig.connect(RESPONSES_PATH, additional_headers={"authorization": "Bearer sk-good"})
        late = await rig.connect(RESPONSES_PATH)
        await create(stranger)
        assert (await stranger.hear_type("error"))["status"] == 401
        await late.say("auth", key="sk-bad")
        assert (await late.hear_type("error"))["status"] == 401
        await late.say("auth", key="sk-good")
        await create(late)
        answer(await rig.exchange(), "x")
        await until_type(late, "response.completed")
        rig.station.clock.now += STRANGER_S + 1.0
        rig.sockets.sweep()
        with pytest.raises(ConnectionClosed) as closed:
            await stranger.hear()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008
        for client in (known, late):
            await create(client)
        answer(await rig.exchange(1), "x")
        answer(await rig.exchange(2), "x")
        for client in (known, late):
            await until_type(client, "response.completed")


async def test_what_cannot_be_resumed_is_an_error_of_its_stream() -> None:
    async with open_rig() as rig:
        client = await rig.connect(RESPONSES_PATH)
        await client.say("response.resume", response_id="none", stream_id="a")
        heard = await client.hear_type("error")
        assert (heard["status"], heard["error"]["code"], heard["stream_id"]) == (404, "response_not_found", "a")
        await create(client)
        answer(await rig.exchange(), "x")
        id = (await until_type(client, "response.completed"))[-1]["response"]["id"]
        await client.say("response.resume", response_id=id)
        heard = await client.hear_type("error")
        assert (heard["status"], heard["error"]["code"]) == (400, "response_events_gone")
        await client.wire.close()
