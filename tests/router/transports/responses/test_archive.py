"""What is kept of responses, in Redis and in one process alike: by owner, by bytes, under leases."""

from collections.abc import Callable

import pytest

from router.store import names
from router.store.connection import Store
from router.transports.responses.archive import Archive, KeepLimits
from router.transports.responses.here import AnyArchive, ArchiveHere
from router.transports.responses.states import Orphan, ResponsesAway, ResponseState, Told
from tests.router.nouns import FakeClock
from tests.router.store.servers import Server

DONE, RUNS, QUEUED = ResponseState.COMPLETED, ResponseState.IN_PROGRESS, ResponseState.QUEUED
New = Callable[[KeepLimits], AnyArchive]


@pytest.fixture(params=["redis", "here"])
async def new(request: pytest.FixtureRequest, store: Store) -> New:
    def make(limits: KeepLimits) -> AnyArchive:
        return Archive(store, limits) if request.param == "redis" else ArchiveHere(FakeClock(), limits)

    return make


@pytest.fixture
def any_archive(new: New) -> AnyArchive:
    return new(KeepLimits())


async def test_an_owner_sees_and_deletes_only_what_is_theirs(any_archive: AnyArchive) -> None:
    await any_archive.put("a", "r", DONE, b"1")
    assert (await any_archive.get("a", "r"), await any_archive.get("b", "r")) == ((DONE, b"1"), None)
    assert await any_archive.delete("b", "r") is False
    assert await any_archive.cancel("b", "r") is None
    assert (await any_archive.delete("a", "r"), await any_archive.delete("a", "r")) == (True, False)
    assert await any_archive.get("a", "r") is None


async def test_the_oldest_of_an_owner_go_but_none_that_runs_nor_others(new: New) -> None:
    archive = new(KeepLimits(owner_bytes=100))
    await archive.put("b", "other", DONE, b"x" * 90)
    fence = await archive.begin("a", "runs", QUEUED, b"x" * 40, b"work")
    for number in range(5):
        await archive.put("a", f"r{number}", DONE, b"x" * 30)
    found = [id for id in ("runs", "r0", "r1", "r2", "r3", "r4") if await archive.get("a", id) is not None]
    assert found == ["runs", "r3", "r4"]
    assert await archive.get("b", "other") is not None
    assert await archive.end("runs", fence, DONE, b"x" * 41, 0, [])
    assert [id for id in ("runs", "r3", "r4") if await archive.get("a", id) is not None] == ["runs", "r4"]


async def test_a_record_that_is_put_again_counts_once(new: New) -> None:
    archive = new(KeepLimits(owner_bytes=100))
    for _ in range(5):
        await archive.put("a", "r", DONE, b"x" * 60)
    await archive.put("a", "s", DONE, b"x" * 40)
    assert await archive.get("a", "r") is not None


async def test_events_are_read_from_any_number_on(any_archive: AnyArchive) -> None:
    fence = await any_archive.begin("a", "r", QUEUED, b"{}", b"")
    assert await any_archive.say("r", fence, RUNS, 0, [b"e0", b"e1"])
    assert await any_archive.say("r", fence, RUNS, 1, [b"e1", b"e2"])  # one was said before
    assert await any_archive.read("r", -1) == Told([(0, b"e0"), (1, b"e1"), (2, b"e2")], is_live=True)
    assert await any_archive.read("r", 1) == Told([(2, b"e2")], is_live=True)
    assert await any_archive.get("a", "r") == (RUNS, b"{}")
    assert await any_archive.end("r", fence, DONE, b"[]", 3, [b"e3"])
    assert await any_archive.read("r", 2) == Told([(3, b"e3")], is_live=False)
    assert await any_archive.get("a", "r") == (DONE, b"[]")
    assert not await any_archive.say("r", fence, RUNS, 4, [b"e4"])


async def test_who_cancels_takes_over_and_ends_it(any_archive: AnyArchive) -> None:
    fence = await any_archive.begin("a", "r", QUEUED, b"{}", b"")
    await any_archive.say("r", fence, RUNS, 0, [b"e0"])
    assert await any_archive.renew([("r", fence)]) != [None]
    assert await any_archive.cancel("a", "r") == (fence + 1, 1)
    assert await any_archive.renew([("r", fence)]) == [None]
    assert not await any_archive.say("r", fence, RUNS, 1, [b"e1"])
    assert not await any_archive.end("r", fence, DONE, b"late", 1, [])
    assert await any_archive.end("r", fence + 1, ResponseState.CANCELLED, b"c", 1, [b"last"])
    assert await any_archive.get("a", "r") == (ResponseState.CANCELLED, b"c")
    assert await any_archive.cancel("a", "r") is None


async def test_one_that_is_deleted_is_lost_to_who_runs_it(any_archive: AnyArchive) -> None:
    fence = await any_archive.begin("a", "r", QUEUED, b"{}", b"")
    await any_archive.say("r", fence, RUNS, 0, [b"e0"])
    assert await any_archive.delete("a", "r")
    assert not await any_archive.end("r", fence, DONE, b"late", 1, [b"e1"])
    assert await any_archive.get("a", "r") is None
    assert await any_archive.read("r", -1) == Told([], is_live=False) or not (await any_archive.read("r", -1)).events


async def test_what_was_left_is_taken_by_one_alone(archive: Archive, redis_server: Server) -> None:
    fence = await archive.begin("a", "r", QUEUED, b"{}", b"work")
    await archive.say("r", fence, RUNS, 0, [b"e0"])
    assert await archive.take() is None
    redis_server.command("ZADD", names.RESPONSES + "held", 0, "r")
    orphan = await archive.take()
    assert orphan == Orphan("r", fence + 1, "a", b"{}", b"work", 1, 1, is_cancelled=False)
    assert await archive.take() is None
    assert await archive.renew([("r", fence), ("r", fence + 1)]) != [None, None]
    await archive.give_back([("r", fence)])  # not theirs any more
    assert await archive.take() is None
    await archive.give_back([("r", fence + 1)])
    again = await archive.take()
    assert again is not None
    assert (again.fence, again.num_deaths) == (fence + 2, 1)  # being given back is no death


async def test_nothing_is_left_in_redis_but_for_a_time(archive: Archive, redis_server: Server) -> None:
    fence = await archive.begin("a", "r", QUEUED, b"{}", b"work")
    await archive.say("r", fence, RUNS, 0, [b"e0"])
    await archive.end("r", fence, DONE, b"[]", 1, [b"e1"])
    await archive.put("a", "s", DONE, b"1")
    keys = redis_server.command("KEYS", names.RESPONSES + "*")
    assert {redis_server.command("PTTL", key) > 0 for key in keys} == {True}
    assert redis_server.command("PTTL", names.RESPONSES + "e:r") <= 600_000
    await archive.delete("a", "r")
    await archive.delete("a", "s")
    [sizes] = redis_server.command("KEYS", names.RESPONSES + "*")
    assert redis_server.command("HGETALL", sizes) in ({b"": b"0"}, [b"", b"0"])


async def test_while_redis_is_away_all_say_so(store: Store, archive: Archive) -> None:
    away = Archive(Store("unix:///nowhere"), KeepLimits())
    with pytest.raises(ResponsesAway) as caught:
        await away.get("a", "r")
    assert (caught.value.status, caught.value.code) == (503, "responses_unavailable")
    with pytest.raises(ResponsesAway):
        await away.put("a", "r", DONE, b"1")
    assert (archive.is_up, away.is_up) == (True, False)


async def test_in_one_process_what_is_too_old_is_gone() -> None:
    clock = FakeClock()
    archive = ArchiveHere(clock, KeepLimits(keep_s=10.0, events_s=5.0))
    fence = await archive.begin("a", "r", QUEUED, b"1", b"")
    await archive.end("r", fence, DONE, b"1", 0, [b"e"])
    clock.now += 6.0
    assert (await archive.read("r", -1)).events == []
    assert await archive.get("a", "r") is not None
    clock.now += 5.0
    assert await archive.get("a", "r") is None
