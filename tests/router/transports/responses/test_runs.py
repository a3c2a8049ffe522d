"""Responses that go on without their client: cancelled, deleted, handed on, taken over from a process that died."""

from collections.abc import Sequence
from typing import ClassVar

from router.store import names
from router.transports.responses.archive import Archive
from router.transports.responses.here import ArchiveHere
from router.transports.responses.runs import SETTLE_S, UNFOLLOWED_S
from router.transports.responses.states import ResponseState
from tests.router.jobs.rig import patiently
from tests.router.nouns import FakeClock
from tests.router.store.servers import Server
from tests.router.transports.dialects.rig import open_rig
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


async def test_a_process_that_drains_leaves_to_others_what_it_cannot_begin(archive: Archive) -> None:
    async with open_rigs(archive) as (first, second):
        first.station.gate.drain()
        id = (await first.fetch("POST", PATH, ASK | {"background": True})).json["id"]
        await patiently(lambda: not first.responses.runs.held)
        await first.responses.runs.look()
        assert not first.responses.runs.held
        await second.responses.runs.look()
        await answered(await second.exchange(), "x")
        assert (await polled(first, id, "completed"))["output"][0]["content"][0]["text"] == "x"


class Watched(ArchiveHere):
    """Remembers which states were told beside events."""

    told: ClassVar[list[ResponseState]] = []

    async def say(self, id: str, fence: int, state: ResponseState, first: int, events: Sequence[bytes]) -> bool:
        self.told.append(state)
        return await ArchiveHere.say(self, id, fence, state, first, events)


async def test_its_end_is_told_with_its_record_and_not_before() -> None:
    archive = Watched(FakeClock())
    archive.told.clear()
    async with open_rig(archive) as rig:
        id = (await rig.fetch("POST", PATH, BACKGROUND | {"stream": False})).json["id"]
        await answered(await rig.exchange(), "x")
        await polled(rig, id, "completed")
    *told, state = archive.told
    assert set(told) <= {ResponseState.QUEUED, ResponseState.IN_PROGRESS}
    assert state is ResponseState.COMPLETED  # by `end`, which says it with the record
