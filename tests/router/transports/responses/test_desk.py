"""Responses that are kept, go on without their client and are followed: over several processes that share a Redis."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from router.store import names
from router.store.connection import Store
from router.transports.responses.archive import Archive, KeepLimits
from router.transports.responses.following import is_last
from router.transports.responses.runs import SETTLE_S, UNFOLLOWED_S
from router.transports.responses.states import ResponseState
from tests.contracts.hostile import DONE
from tests.fakes import FakeExchange, until
from tests.router.jobs.rig import patiently
from tests.router.store.servers import Server, server
from tests.router.transports.dialects.rig import Answer, Rig, open_rig, stream, whole

PATH = "/v1/responses"
ASK = {"model": "m", "input": "hi"}
RESUMABLE = ASK | {"stream": True, "store": True}
BACKGROUND = ASK | {"stream": True, "background": True}


@asynccontextmanager
async def open_rigs(archive: Archive, number: int = 2) -> AsyncIterator[list[Rig]]:
    """Processes that share Redis. Each looks after what runs, as the composition root has it do."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(open_rig(archive)) for _ in range(number)]


class Reader:
    """Reads a stream event by event, as far as it is asked to."""

    def __init__(self, rig: Rig, method: str, path: str, body: object = None) -> None:
        self._context = rig.session.request(method, path, json=body)

    async def __aenter__(self) -> "Reader":
        """It is asked; its head may come later."""
        self._asking = asyncio.ensure_future(self._context.__aenter__())
        return self

    async def __aexit__(self, *_: object) -> None:
        (await self._asking).close()

    async def event(self) -> dict[str, Any]:
        async with asyncio.timeout(30):
            response = await self._asking
            assert response.status == 200, await response.read()
            while True:
                line = await response.content.readline()
                assert line, "the stream has ended"
                if line.startswith(b"data: "):
                    found: dict[str, Any] = json.loads(line[6:])
                    return found

    async def until_type(self, type: str) -> list[dict[str, Any]]:
        found = [await self.event()]
        while found[-1]["type"] != type:
            found.append(await self.event())
        return found


def delta(text: str) -> bytes:
    return b'data: {"choices":[{"delta":{"content":"%b"}}]}\n\n' % text.encode()


async def answered(exchange: FakeExchange, *texts: str) -> None:
    exchange.head()
    exchange.send(stream(*({"content": text} for text in texts)))
    exchange.end()


async def polled(rig: Rig, id: str, status: str) -> dict[str, Any]:
    async with asyncio.timeout(30):
        while (found := (await rig.fetch("GET", f"{PATH}/{id}")).json)["status"] != status:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return found


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


async def test_who_dropped_and_is_followed_by_nobody_is_cancelled() -> None:
    async with open_rig() as rig:
        async with Reader(rig, "POST", PATH, RESUMABLE) as reader:
            exchange = await rig.exchange()
            exchange.head()
            exchange.send(delta("a"))
            id = (await reader.event())["response"]["id"]
        await patiently(lambda: rig.responses.runs.held[id].left_at is not None)
        rig.station.clock.now += UNFOLLOWED_S - 1.0
        await rig.responses.runs.look()
        assert not exchange.is_aborted
        rig.station.clock.now += 2.0
        await rig.responses.runs.look()
        assert exchange.is_aborted
        assert (await rig.fetch("GET", f"{PATH}/{id}")).json["status"] == "cancelled"


async def test_one_in_the_background_is_cancelled_from_another_process(archive: Archive) -> None:
    async with open_rigs(archive) as (first, second):
        id = (await first.fetch("POST", PATH, BACKGROUND | {"stream": False})).json["id"]
        exchange = await first.exchange()
        answer = await second.fetch("POST", f"{PATH}/{id}/cancel")
        assert (answer.status, answer.json["status"]) == (200, "cancelled")
        await first.responses.runs.look()
        await patiently(lambda: exchange.is_aborted and not first.responses.runs.held)
        assert (await first.fetch("GET", f"{PATH}/{id}")).json["status"] == "cancelled"
        assert (await first.fetch("POST", f"{PATH}/{id}/cancel")).json["status"] == "cancelled"


async def test_who_follows_hears_of_a_cancel(archive: Archive) -> None:
    async with open_rigs(archive) as (first, second):
        async with Reader(first, "POST", PATH, BACKGROUND) as reader:
            id = (await reader.event())["response"]["id"]
            exchange = await first.exchange()
            exchange.head()
            exchange.send(delta("a"))
            await reader.until_type("response.output_text.delta")
            assert (await second.fetch("POST", f"{PATH}/{id}/cancel")).status == 200
            last = (await reader.until_type("response.failed"))[-1]
        assert (last["response"]["status"], last["response"]["error"]["code"]) == ("cancelled", "response_cancelled")
        await first.responses.runs.look()
        await patiently(lambda: exchange.is_aborted)


async def test_one_that_is_deleted_elsewhere_is_stopped(archive: Archive) -> None:
    async with open_rigs(archive) as (first, second):
        id = (await first.fetch("POST", PATH, ASK | {"background": True})).json["id"]
        exchange = await first.exchange()
        assert (await second.fetch("DELETE", f"{PATH}/{id}")).status == 200
        await first.responses.runs.look()
        await patiently(lambda: exchange.is_aborted)
        assert (await first.fetch("GET", f"{PATH}/{id}")).status == 404


async def test_a_process_that_stops_hands_on_what_nobody_has_heard_of(archive: Archive) -> None:
    async with open_rigs(archive) as (first, second):
        async with Reader(first, "POST", PATH, BACKGROUND | {"previous_response_id": None}) as reader:
            id = (await reader.event())["response"]["id"]
            await first.exchange()
            await patiently(lambda: first.responses.runs.held[id].tape.num_said == 2)
            await first.responses.runs.close()
            await second.responses.runs.look()
            assert [each["content"] for each in (await second.sent())["messages"]] == ["hi"]
            await answered(await second.exchange(), "x")
            heard = await reader.until_type("response.completed")
        assert [each["sequence_number"] for each in heard] == list(range(1, len(heard) + 1))
        assert (await first.fetch("GET", f"{PATH}/{id}")).json["output"][0]["content"][0]["text"] == "x"


async def test_a_process_that_dies_in_the_middle_of_a_stream_has_failed_it(
    archive: Archive, redis_server: Server
) -> None:
    async with open_rigs(archive) as (first, second):
        async with Reader(second, "POST", PATH, BACKGROUND) as reader:
            id = (await reader.event())["response"]["id"]
            exchange = await second.exchange()
            exchange.head()
            exchange.send(delta("a"))
            await reader.until_type("response.output_text.delta")
            redis_server.command("ZADD", names.RESPONSES + "held", 0, id)
            await first.responses.runs.look()
            last = (await reader.until_type("response.failed"))[-1]
        assert (last["response"]["status"], last["response"]["error"]["code"]) == ("failed", "server_error")
        assert first.upstream.exchanges == []
        await second.responses.runs.look()
        await patiently(lambda: not second.responses.runs.held)


async def test_one_whose_process_died_is_run_again_but_not_for_ever(archive: Archive, redis_server: Server) -> None:
    async with open_rigs(archive) as (first, second):
        id = (await first.fetch("POST", PATH, ASK | {"background": True, "instructions": "Be brief."})).json["id"]
        await first.exchange()
        for rig, number in ((second, 0), (first, 1)):
            redis_server.command("ZADD", names.RESPONSES + "held", 0, id)
            await rig.responses.runs.look()
            sent = await rig.sent(number)
            assert [each["content"] for each in sent["messages"]] == ["Be brief.", "hi"]
        redis_server.command("ZADD", names.RESPONSES + "held", 0, id)
        await second.responses.runs.look()
        assert (await polled(second, id, "failed"))["error"]["code"] == "server_error"
        for rig in (first, second):
            await rig.responses.runs.look()
            await patiently(lambda rig=rig: not rig.responses.runs.held)  # type: ignore[misc]


async def test_behind_an_outage_nothing_is_taken_from_who_may_be_about_to_renew_it(
    archive: Archive, redis_server: Server
) -> None:
    async with open_rigs(archive) as (first, second):
        id = (await first.fetch("POST", PATH, ASK | {"background": True})).json["id"]
        exchange = await first.exchange()
        redis_server.command("ZADD", names.RESPONSES + "held", 0, id)
        second.responses.runs._settled_at = second.station.clock() + SETTLE_S
        await second.responses.runs.look()
        await first.responses.runs.look()
        second.station.clock.now += SETTLE_S
        await second.responses.runs.look()
        assert second.upstream.exchanges == []
        await answered(exchange, "x")
        await polled(second, id, "completed")


async def test_a_record_that_cannot_be_read_is_dropped_and_harms_nobody(archive: Archive, redis_server: Server) -> None:
    async with open_rigs(archive, 1) as (rig,):
        for id, record, work in (
            ("r", b"{", b"{}"),
            ("s", b'{"response":{"background":true},"input":[],"messages":[]}', b"{"),
        ):
            await archive.begin("default", id, ResponseState.QUEUED, record, work)
            redis_server.command("ZADD", names.RESPONSES + "held", 0, id)
            await rig.responses.runs.look()
        assert await archive.get("default", "r") is None
        found = await archive.get("default", "s")
        assert found is not None
        assert found[0] is ResponseState.FAILED


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


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("stream=maybe", "stream"),
        ("stream=true&starting_after=-1", "starting_after"),
        ("stream=true&starting_after=x", "starting_after"),
        ("starting_after=1", "starting_after"),
        ("stream=true&starting_after=999", "starting_after"),
    ],
)
async def test_a_wrong_question_names_its_field(query: str, param: str) -> None:
    async with open_rig() as rig:
        asking = rig.ask(PATH, ASK)
        (await rig.exchange()).answer(200, whole({"content": "one"}))
        id = (await asking).json["id"]
        answer = await rig.fetch("GET", f"{PATH}/{id}?{query}")
        assert (answer.status, answer.json["error"]["param"]) == (400, param)


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


async def test_input_items_come_in_pages_the_latest_first() -> None:
    async with open_rig() as rig:
        items = [{"role": "user", "content": str(number)} for number in range(5)]
        asking = rig.ask(PATH, {"model": "m", "input": items})
        (await rig.exchange()).answer(200, whole({"content": "one"}))
        address = f"{PATH}/{(await asking).json['id']}/input_items"

        def contents(answer: Answer) -> list[str]:
            return [each["content"] for each in answer.json["data"]]

        page = await rig.fetch("GET", f"{address}?limit=2")
        assert (contents(page), page.json["has_more"]) == (["4", "3"], True)
        page = await rig.fetch("GET", f"{address}?limit=3&after={page.json['last_id']}")
        assert (contents(page), page.json["has_more"]) == (["2", "1", "0"], False)
        assert contents(await rig.fetch("GET", f"{address}?order=asc")) == ["0", "1", "2", "3", "4"]
        for query, param in (("limit=0", "limit"), ("limit=x", "limit"), ("order=up", "order"), ("after=x", "after")):
            wrong = await rig.fetch("GET", f"{address}?{query}")
            assert (wrong.status, wrong.json["error"]["param"]) == (400, param)
