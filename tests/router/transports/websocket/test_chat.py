"""Requests and conversations on one socket, spoken by a real client over a real connection."""

import json

import pytest
from websockets.exceptions import ConnectionClosed

from router.core import Outcome
from router.errors import ConnectionCut
from router.transports.conversation import LEAST_PREFILL_CHARS
from router.transports.turns import MAX_WAITING_TURNS
from router.transports.websocket.chat import ChatLimits
from router.transports.websocket.sockets import STRANGER_S
from tests.contracts.hostile import DONE, event
from tests.fakes import turns, until
from tests.router.transports.websocket.rig import Client, open_rig


async def test_a_request_is_answered_event_by_event() -> None:
    async with open_rig() as rig:
        client = await rig.connect()
        await client.ask("a", temperature=0.5)
        exchange = await rig.exchange()
        body = json.loads(exchange.attempt.body)
        assert (body["stream"], body["temperature"], body["stream_options"]) == (True, 0.5, {"include_usage": True})
        exchange.head()
        exchange.send(event("x"))
        started = await client.hear_type("request.started")
        assert (started["id"], started["replica"]) == ("a", exchange.attempt.replica.id)
        assert started["request_id"]
        heard = await client.hear_type("request.event")
        assert heard["event"] == json.loads(event("x").removeprefix(b"data: "))
        exchange.send(DONE)
        exchange.end()
        assert await client.hear() == {"type": "request.done", "id": "a"}
        await client.wire.close()


async def test_many_requests_share_a_socket_and_one_is_cancelled_by_its_id() -> None:
    async with open_rig() as rig:
        client = await rig.connect()
        await client.ask("a", "one")
        await client.ask("b", "two")
        first, second = await rig.exchange(0), await rig.exchange(1)
        await client.say("request.cancel", id="a")
        assert await client.hear() == {"type": "request.done", "id": "a"}
        assert (first.is_aborted, second.is_aborted) == (True, False)
        second.head()
        second.send(event("x") + DONE)
        second.end()
        assert [(await client.hear())["id"] for _ in range(3)] == ["b", "b", "b"]
        await client.wire.close()
        await rig.until_idle()
        assert sorted(str(each) for each in rig.station.outcomes) == ["client_gone", "ok"]


async def test_a_client_that_leaves_cancels_all_it_asked_for() -> None:
    async with open_rig() as rig:
        client = await rig.connect()
        await client.ask("a")
        await client.ask("b")
        exchanges = [await rig.exchange(0), await rig.exchange(1)]
        client.wire.transport.abort()
        await until(lambda: all(each.is_aborted for each in exchanges))
        await rig.until_idle()
        assert rig.station.outcomes == [Outcome.CLIENT_GONE] * 2
        assert rig.station.faults == {}


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("{", None),
        ('{"type":"other"}', "type"),
        ('{"type":"request.create","id":"","body":{}}', "id"),
        ('{"type":"request.create","body":{}}', "id"),
        ('{"type":"request.create","id":"a","body":[]}', "body"),
        ('{"type":"request.create","id":"a","body":{"model":"m"}}', "messages"),
        ('{"type":"request.create","id":"a","path":"/v1/other","body":{"model":"m"}}', "path"),
        ('{"type":"session.open","session":"s","body":{}}', "model"),
        ('{"type":"session.open","session":"s","body":{"model":"m","stream":true}}', "stream"),
        ('{"type":"input.append","session":"none","text":"x"}', "session"),
        ('{"type":"input.commit","session":"none","id":"a"}', "session"),
        ("[" * 100_000, None),
    ],
)
async def test_a_wrong_message_is_told_and_the_socket_lives_on(message: str, param: str | None) -> None:
    async with open_rig() as rig:
        client = await rig.connect()
        await client.wire.send(message)
        heard = await client.hear_type("error")
        assert (heard["error"]["type"], heard["error"]["param"], heard["status"]) == (
            "invalid_request_error",
            param,
            400,
        )
        await client.ask("fine")
        await rig.exchange()
        await client.wire.close()


async def test_an_id_in_use_is_refused_and_its_request_goes_on() -> None:
    async with open_rig() as rig:
        client = await rig.connect()
        await client.ask("a")
        exchange = await rig.exchange()
        await client.ask("a")
        heard = await client.hear_type("error")
        assert (heard["id"], heard["error"]["param"]) == ("a", "id")
        assert not exchange.is_aborted
        await client.wire.close()


async def test_more_requests_than_a_socket_holds_are_refused() -> None:
    async with open_rig(chat=ChatLimits(max_requests=1)) as rig:
        client = await rig.connect()
        await client.ask("a")
        await rig.exchange()
        await client.ask("b")
        assert "at most 1" in (await client.hear_type("error"))["error"]["message"]
        await client.wire.close()


async def test_an_unknown_model_is_an_error_of_that_request() -> None:
    async with open_rig() as rig:
        client = await rig.connect()
        await client.ask("a", model="other")
        heard = await client.hear_type("error")
        assert (heard["id"], heard["status"], heard["error"]["code"]) == ("a", 404, "model_not_found")
        await client.wire.close()


async def test_a_cut_in_mid_stream_is_told() -> None:
    async with open_rig() as rig:
        client = await rig.connect()
        await client.ask("a")
        exchange = await rig.exchange()
        exchange.head()
        exchange.send(event("x"))
        exchange.fail(ConnectionCut("cut"))
        heard = [await client.hear() for _ in range(3)]
        assert [each["type"] for each in heard] == ["request.started", "request.event", "error"]
        assert heard[2]["error"]["code"] == "replica_connection_lost"
        await client.wire.close()


async def test_an_event_that_is_no_json_is_an_error_and_no_broken_message() -> None:
    async with open_rig() as rig:
        client = await rig.connect()
        await client.ask("a")
        exchange = await rig.exchange()
        exchange.head()
        exchange.send(b"data: {nonsense\n\n" + DONE)
        exchange.end()
        await client.hear_type("request.started")
        assert (await client.hear_type("error"))["error"]["code"] == "replica_bad_answer"
        await client.wire.close()


async def test_who_reads_slowly_pauses_every_replica_of_the_socket() -> None:
    async with open_rig() as rig:
        client = await rig.connect()
        await client.ask("a")
        await client.ask("b")
        first, second = await rig.exchange(0), await rig.exchange(1)
        client.wire.transport.pause_reading()
        first.head()
        while not first.is_paused:
            first.send(event("x" * 50_000))
            await turns(2)
        assert second.is_paused
        client.wire.transport.resume_reading()
        await until(lambda: not first.is_paused and not second.is_paused)


async def open_session(client: Client, **body: object) -> None:
    await client.say("session.open", session="s", body={"model": "m", **body})
    await client.hear_type("session.opened")


async def test_a_conversation_is_kept_so_that_the_client_sends_only_what_is_new() -> None:
    async with open_rig() as rig:
        client = await rig.connect()
        await open_session(client, messages=[{"role": "system", "content": "Be brief."}], max_tokens=9)
        await client.say("input.append", session="s", text="Hel")
        await client.say("input.append", session="s", text="lo")
        await client.say("input.commit", session="s", id="t1")
        exchange = await rig.exchange()
        exchange.head()
        exchange.send(event("Hi ") + event("there") + DONE)
        exchange.end()
        assert [(await client.hear())["type"] for _ in range(4)][-1] == "request.done"
        await client.say("input.commit", session="s", id="t2", messages=[{"role": "user", "content": "More"}])
        second = await rig.exchange(1)
        body = json.loads(second.attempt.body)
        assert body["messages"] == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "Hi there"},
            {"role": "user", "content": "More"},
        ]
        assert body["max_tokens"] == 9
        sessions = [dict(each.attempt.headers)["x-session-id"] for each in (exchange, second)]
        assert sessions[0] == sessions[1]
        await client.wire.close()


async def test_long_input_is_prefilled_while_it_comes_and_the_turn_waits_for_that() -> None:
    async with open_rig() as rig:
        client = await rig.connect()
        await open_session(client)
        text = "word " * LEAST_PREFILL_CHARS
        await client.say("input.append", session="s", text=text)
        prefill = await rig.exchange()
        body = json.loads(prefill.attempt.body)
        assert (body["max_tokens"], body["stream"], body["messages"][0]["content"]) == (1, False, text)
        await client.say("input.append", session="s", text="end")
        await client.say("input.commit", session="s", id="t")
        await turns()
        assert len(rig.upstream.exchanges) == 1
        prefill.answer(200, b'{"choices":[{"message":{"content":"x"}}]}')
        turn = await rig.exchange(1)
        assert json.loads(turn.attempt.body)["messages"][0]["content"] == text + "end"
        await client.wire.close()


async def test_a_prefill_that_fails_harms_no_turn() -> None:
    async with open_rig() as rig:
        client = await rig.connect()
        await open_session(client)
        await client.say("input.append", session="s", text="word " * LEAST_PREFILL_CHARS)
        (await rig.exchange()).answer(400, b'{"error":{"message":"no"}}')
        await client.say("input.commit", session="s", id="t")
        turn = await rig.exchange(1)
        turn.head()
        turn.send(event("ok") + DONE)
        turn.end()
        assert [(await client.hear())["type"] for _ in range(3)] == ["request.started", "request.event", "request.done"]
        await client.wire.close()


async def test_turns_are_answered_one_after_the_other_and_a_failed_one_has_not_been() -> None:
    async with open_rig() as rig:
        client = await rig.connect()
        await open_session(client)
        for id in ("t1", "t2"):
            await client.say("input.commit", session="s", id=id, messages=[{"role": "user", "content": id}])
        first = await rig.exchange()
        await turns()
        assert len(rig.upstream.exchanges) == 1
        first.answer(400, b'{"error":{"message":"no","type":"invalid_request_error"}}')
        assert (await client.hear_type("error"))["id"] == "t1"
        second = await rig.exchange(1)
        assert json.loads(second.attempt.body)["messages"] == [{"role": "user", "content": "t2"}]
        await client.wire.close()


async def test_what_came_of_a_cancelled_turn_stays_in_the_history() -> None:
    async with open_rig() as rig:
        client = await rig.connect()
        await open_session(client)
        await client.say("input.commit", session="s", id="t1", messages=[{"role": "user", "content": "go"}])
        first = await rig.exchange()
        first.head()
        first.send(event("half"))
        await client.hear_type("request.started")
        await client.hear_type("request.event")
        await client.say("request.cancel", id="t1")
        await client.hear_type("request.done")
        await client.say("input.commit", session="s", id="t2", messages=[{"role": "user", "content": "on"}])
        second = await rig.exchange(1)
        assert [each["content"] for each in json.loads(second.attempt.body)["messages"]] == ["go", "half", "on"]
        await client.wire.close()


async def test_a_conversation_over_its_bound_refuses_more_and_keeps_what_it_has() -> None:
    async with open_rig(chat=ChatLimits(max_session_bytes=1000)) as rig:
        client = await rig.connect()
        await open_session(client)
        await client.say("input.append", session="s", text="kept")
        await client.say("input.append", session="s", text="x" * 2000)
        assert (await client.hear_type("error"))["status"] == 413
        await client.say("input.commit", session="s", id="t")
        assert json.loads((await rig.exchange()).attempt.body)["messages"][0]["content"] == "kept"
        await client.wire.close()


async def test_a_key_shown_by_header_protocol_or_message_is_each_requests_credential() -> None:
    async with open_rig() as rig:
        by_header = await rig.connect(additional_headers={"Authorization": "Bearer k1"})
        by_protocol = await rig.connect(subprotocols=["pointsman", "pointsman.key.k2"])
        assert by_protocol.wire.subprotocol == "pointsman"
        by_message = await rig.connect()
        await by_message.say("auth", key="k3")
        for client in (by_header, by_protocol, by_message):
            await client.ask("a")
        await until(lambda: len(rig.station.relays) == 3)
        keys = [dict(relay.request.headers)["authorization"] for relay in rig.station.relays]
        assert sorted(keys) == ["Bearer k1", "Bearer k2", "Bearer k3"]
        for client in (by_header, by_protocol, by_message):
            await client.wire.close()


async def test_a_router_that_drains_says_so_and_ends_what_is_open() -> None:
    async with open_rig() as rig:
        client = await rig.connect()
        await client.ask("a")
        exchange = await rig.exchange()
        rig.sockets.drain()
        assert (await client.hear_type("drain"))["reconnect_after_s"] > 0
        exchange.head()
        exchange.send(event("x") + DONE)
        exchange.end()
        assert [(await client.hear())["type"] for _ in range(3)][-1] == "request.done"
        rig.sockets.close()
        with pytest.raises(ConnectionClosed) as caught:
            await client.hear()
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1012


async def test_turns_that_wait_are_bounded_and_one_that_waits_is_withdrawn() -> None:
    async with open_rig() as rig:
        client = await rig.connect()
        await client.say("session.open", session="s", body={"model": "m"})
        await client.hear_type("session.opened")
        for number in range(MAX_WAITING_TURNS + 2):
            messages = [{"role": "user", "content": str(number)}]
            await client.say("input.commit", session="s", id=f"t{number}", messages=messages)
        heard = await client.hear_type("error")
        assert (heard["id"], heard["status"], heard["error"]["code"]) == (
            f"t{MAX_WAITING_TURNS + 1}",
            429,
            "queue_full",
        )
        await client.say("request.cancel", id="t1")
        assert (await client.hear_type("request.done"))["id"] == "t1"
        exchange = await rig.exchange()
        exchange.head()
        exchange.send(event("x") + DONE)
        exchange.end()
        sent = json.loads((await rig.exchange(1)).attempt.body)
        assert sent["messages"][-1]["content"] == "2"
        await client.wire.close()


async def test_who_shows_no_good_key_is_told_and_closed_in_time() -> None:
    async with open_rig(key="sk-good") as rig:
        stranger, late = await rig.connect(), await rig.connect()
        known = await rig.connect(subprotocols=["pointsman", "pointsman.key.sk-good"])
        await late.say("auth", key="sk-bad")
        assert (await late.hear_type("error"))["error"]["code"] == "invalid_api_key"
        await late.say("auth", key="sk-good")
        await late.ask("a")
        await rig.exchange()
        rig.station.clock.now += STRANGER_S + 1.0
        rig.sockets.sweep()
        with pytest.raises(ConnectionClosed) as closed:
            await stranger.hear()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008
        await known.ask("b")
        await rig.exchange(1)
        for client in (late, known):
            await client.wire.close()
