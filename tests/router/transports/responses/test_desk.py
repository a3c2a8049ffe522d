"""Responses that are kept, go on without their client and are followed: over several processes that share a Redis."""

import json

import pytest

from router.store import names
from router.store.connection import Store
from router.transports.responses import desk, runs
from router.transports.responses.archive import Archive, KeepLimits
from router.transports.responses.following import is_last
from tests.contracts.hostile import DONE
from tests.fakes import until
from tests.router.jobs.rig import patiently
from tests.router.store.servers import Server, server
from tests.router.transports.dialects.rig import open_rig, whole
from tests.router.transports.responses.rigs import (
    ASK,
    BACKGROUND,
    PATH,
    RESUMABLE,
    Reader,
    answered,
    delta,
    open_rigs,
    polled,
)


async def test_every_process_follows_reads_and_deletes_what_another_has_stored(archive: Archive) -> None:
    async with open_rigs(archive) as (first, second):
        asking = first.ask(PATH, ASK)
        (await first.exchange()).answer(200, whole({"content": "one"}))
        body = (await asking).json
        assert body["store"] is True
        following = second.ask(PATH, ASK | {"previous_response_id": body["id"]})
        assert [each["content"] for each in (await second.sent())["messages"]] == ["hi", "one", "hi"]
        (await second.exchange()).answer(200, whole({"content": "two"}))
        assert (await following).status == 200
        assert (await second.fetch("DELETE", f"{PATH}/{body['id']}")).json["deleted"] is True
        assert (await first.fetch("GET", f"{PATH}/{body['id']}")).status == 404


async def test_a_response_is_stored_before_its_end_is_told(archive: Archive) -> None:
    async with open_rigs(archive, 1) as (rig,), Reader(rig, "POST", PATH, ASK | {"stream": True}) as reader:
        exchange = await rig.exchange()
        await answered(exchange, "x")
        last = (await reader.until_type("response.completed"))[-1]
        assert await archive.get("default", last["response"]["id"]) is not None


async def test_one_in_the_background_is_streamed_dropped_and_followed_elsewhere(archive: Archive) -> None:
    async with open_rigs(archive) as (first, second):
        async with Reader(first, "POST", PATH, BACKGROUND) as reader:
            opening = [await reader.event(), await reader.event()]
            assert [each["type"] for each in opening] == ["response.created", "response.queued"]
            id = opening[0]["response"]["id"]
            assert (await second.fetch("GET", f"{PATH}/{id}")).json["status"] == "queued"
            exchange = await first.exchange()
            exchange.head()
            exchange.send(delta("a"))
            seen = (await reader.until_type("response.output_text.delta"))[-1]["sequence_number"]
        assert (await polled(second, id, "in_progress"))["output"] == []
        address = f"{PATH}/{id}?stream=true&starting_after={seen}"
        async with Reader(second, "GET", address) as one, Reader(first, "GET", address) as other:
            exchange.send(delta("b") + DONE)
            exchange.end()
            rest = await one.until_type("response.completed")
            assert rest == await other.until_type("response.completed")
        assert [each["sequence_number"] for each in rest] == list(range(seen + 1, seen + 1 + len(rest)))
        assert rest[-1]["response"]["output"][0]["content"][0]["text"] == "ab"
        whole_again = (await second.fetch("GET", f"{PATH}/{id}?stream=true")).events
        assert [each["sequence_number"] for each in whole_again] == list(range(seen + 1 + len(rest)))
        assert (await second.fetch("GET", f"{PATH}/{id}")).json == rest[-1]["response"]


async def test_one_that_is_not_streamed_can_be_waited_for_all_the_same(archive: Archive) -> None:
    async with open_rigs(archive) as (first, second):
        id = (await first.fetch("POST", PATH, ASK | {"background": True})).json["id"]
        async with Reader(second, "GET", f"{PATH}/{id}?stream=true") as reader:
            await answered(await first.exchange(), "x")
            last = await reader.event()
        assert (last["type"], last["response"]["id"]) == ("response.completed", id)


async def test_a_stream_that_is_stored_by_name_goes_on_when_its_client_drops(archive: Archive) -> None:
    async with open_rigs(archive) as (first, second):
        async with Reader(first, "POST", PATH, RESUMABLE) as reader:
            exchange = await first.exchange()
            exchange.head()
            exchange.send(delta("a"))
            heard = await reader.until_type("response.output_text.delta")
            id, seen = heard[0]["response"]["id"], heard[-1]["sequence_number"]
        await patiently(lambda: first.responses.runs.held[id].left_at is not None)
        async with Reader(second, "GET", f"{PATH}/{id}?stream=true&starting_after={seen}") as again:
            exchange.send(delta("b") + DONE)
            exchange.end()
            rest = await again.until_type("response.completed")
        assert rest[0]["delta"] == "b"


async def test_a_plain_stream_costs_no_events_and_ends_with_its_client(archive: Archive, redis_server: Server) -> None:
    async with open_rigs(archive, 1) as (rig,):
        async with Reader(rig, "POST", PATH, ASK | {"stream": True}) as reader:
            exchange = await rig.exchange()
            exchange.head()
            exchange.send(delta("a"))
            id = (await reader.event())["response"]["id"]
            assert redis_server.command("KEYS", names.RESPONSES + "*") == []
        await until(lambda: exchange.is_aborted)
        assert (await rig.fetch("GET", f"{PATH}/{id}?stream=true")).status == 404


async def test_a_stranger_neither_follows_nor_cancels(archive: Archive) -> None:
    async with open_rigs(archive, 1) as (rig,):
        own, other = {"Authorization": "Bearer a"}, {"Authorization": "Bearer b"}
        id = (await rig.fetch("POST", PATH, ASK | {"background": True}, **own)).json["id"]
        exchange = await rig.exchange()
        assert (await rig.fetch("GET", f"{PATH}/{id}?stream=true", **other)).status == 404
        assert (await rig.fetch("POST", f"{PATH}/{id}/cancel", **other)).status == 404
        assert (await rig.fetch("DELETE", f"{PATH}/{id}", **other)).status == 404
        assert not exchange.is_aborted
        assert (await rig.fetch("POST", f"{PATH}/{id}/cancel", **own)).json["status"] == "cancelled"


async def test_events_that_are_gone_are_an_error_and_no_gap(archive: Archive, redis_server: Server) -> None:
    async with open_rigs(archive, 1) as (rig,):
        async with Reader(rig, "POST", PATH, BACKGROUND) as reader:
            id = (await reader.event())["response"]["id"]
            await answered(await rig.exchange(), "x")
            await reader.until_type("response.completed")
        redis_server.command("XTRIM", names.RESPONSES + f"e:{id}", "MAXLEN", 2)
        answer = await rig.fetch("GET", f"{PATH}/{id}?stream=true&starting_after=0")
        assert (answer.status, answer.json["error"]["code"]) == (400, "response_events_gone")
        last = (await rig.fetch("GET", f"{PATH}/{id}?stream=true&starting_after=8")).events
        assert is_last(json.dumps(last[-1], separators=(",", ":")).encode())


async def test_while_redis_is_away_requests_are_served_and_say_that_they_are_not_stored() -> None:
    async with open_rig(Archive(Store("unix:///nowhere"), KeepLimits())) as rig:
        asking = rig.ask(PATH, ASK)
        (await rig.exchange()).answer(200, whole({"content": "one"}))
        body = (await asking).json
        assert (body["store"], body["output"][0]["content"][0]["text"]) == (False, "one")
        streaming = rig.ask(PATH, RESUMABLE)
        await answered(await rig.exchange(1), "x")
        last = (await streaming).events[-1]
        assert (last["type"], last["response"]["store"]) == ("response.completed", False)
        for refused in (
            await rig.fetch("GET", f"{PATH}/{body['id']}"),
            await rig.fetch("POST", f"{PATH}/{body['id']}/cancel"),
            await rig.fetch("POST", PATH, ASK | {"background": True}),
            await rig.fetch("POST", PATH, ASK | {"previous_response_id": body["id"]}),
        ):
            assert (refused.status, refused.json["error"]["code"]) == (503, "responses_unavailable")
        assert len(rig.upstream.exchanges) == 2


async def test_a_client_is_served_to_the_end_when_redis_dies_in_the_middle_of_its_stream() -> None:
    with server("6.2") as own:
        store = Store(own.url, timeout_s=5.0)
        async with store.opened(), open_rig(Archive(store, KeepLimits())) as rig:
            await store.wait_up(30.0)
            async with Reader(rig, "POST", PATH, RESUMABLE) as reader:
                exchange = await rig.exchange()
                exchange.head()
                exchange.send(delta("a"))
                await reader.until_type("response.output_text.delta")
                own.stop()
                exchange.send(delta("b") + DONE)
                exchange.end()
                last = (await reader.until_type("response.completed"))[-1]["response"]
            assert (last["store"], last["output"][0]["content"][0]["text"]) == (False, "ab")


async def test_a_conversation_that_is_too_long_is_answered_and_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (desk, runs):
        monkeypatch.setattr(module, "MAX_RECORD_BYTES", 5000)
    async with open_rig() as rig:
        text = "x" * 5000
        asking = rig.ask(PATH, ASK | {"input": text})
        (await rig.exchange()).answer(200, whole({"content": "one"}))
        assert (await asking).json["store"] is False
        streaming = rig.ask(PATH, RESUMABLE | {"input": text})
        await answered(await rig.exchange(1), "x")
        assert (await streaming).events[-1]["response"]["store"] is False
        refused = await rig.fetch("POST", PATH, ASK | {"input": text, "background": True})
        assert (refused.status, refused.json["error"]["code"]) == (413, "response_too_long")
