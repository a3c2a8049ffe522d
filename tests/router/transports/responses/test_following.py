"""Who follows a response: its events in order, signs of life, and what is told when it cannot go on."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.transports.responses.following import HEARTBEAT_S, Bell, Following, is_last, sse
from router.transports.responses.here import AnyArchive, ArchiveHere
from router.transports.responses.states import EventsGone, ResponsesAway, ResponseState, Told, UnknownResponse
from tests.router.nouns import FakeClock

RUNS, DONE = ResponseState.IN_PROGRESS, ResponseState.COMPLETED
LAST = b'{"type":"response.completed","n":1}'


def event(number: int) -> bytes:
    return b'{"type":"response.output_text.delta","n":%d}' % number


@dataclass(eq=False)
class Rig:
    clock: FakeClock = field(default_factory=FakeClock)
    bell: Bell = field(default_factory=Bell)

    def __post_init__(self) -> None:
        self.archive = ArchiveHere(self.clock)
        self.following = Following(self.archive, self.bell, self.clock)

    async def begin(self) -> int:
        return await self.archive.begin("a", "r", RUNS, b"{}", b"")

    async def say(self, first: int, *events: bytes) -> None:
        await self.archive.say("r", 1, RUNS, first, events)
        self.bell.ring("r")


async def gathered(found: AsyncIterator[Sequence[bytes]]) -> list[bytes]:
    async with asyncio.timeout(30):
        return [each async for events in found for each in events]


async def test_events_come_from_the_number_on_and_end_with_the_last() -> None:
    rig = Rig()
    await rig.begin()
    await rig.say(0, event(0), event(1))
    async with await rig.following.open("a", "r", 0) as found, asyncio.TaskGroup() as group:
        reading = group.create_task(gathered(found))
        await rig.say(2, event(2))
        await rig.archive.end("r", 1, DONE, b"{}", 3, [LAST])
        rig.bell.ring("r")
    assert await reading == [event(1), event(2), LAST]
    assert repr(rig.bell) == "<Bell 0 responses are waited for>"


async def test_what_is_not_there_or_gone_is_told_at_once() -> None:
    rig = Rig()
    with pytest.raises(UnknownResponse):
        await rig.following.open("a", "r", -1)
    await rig.begin()
    with pytest.raises(UnknownResponse):
        await rig.following.open("b", "r", -1)
    await rig.archive.end("r", 1, DONE, b"{}", 5, [LAST])
    with pytest.raises(EventsGone):
        await rig.following.open("a", "r", 2)
    with pytest.raises(EventsGone):
        await rig.following.open("a", "r", 5)


async def test_silence_is_broken_by_signs_of_life() -> None:
    rig = Rig()
    await rig.begin()
    async with await rig.following.open("a", "r", -1) as found, asyncio.timeout(30):
        waiting = asyncio.ensure_future(anext(found))
        await asyncio.sleep(0)
        rig.clock.now += HEARTBEAT_S + 1.0
        assert await waiting == ()
        await rig.say(0, event(0))
        assert await anext(found) == [event(0)]


@dataclass(eq=False)
class FlakyArchive:
    """Away for so many reads."""

    num_away: int

    async def get(self, owner: str, id: str) -> tuple[ResponseState, bytes]:
        return RUNS, b"{}"

    async def read(self, id: str, after: int) -> Told:
        if after < 0:
            return Told([(0, event(0))], is_live=True)
        if self.num_away > 0:
            self.num_away -= 1
            raise ResponsesAway("away")
        return Told([(1, LAST)], is_live=False)


@pytest.mark.parametrize(("away_s", "is_told"), [(600.0, False), (0.0, True)])
async def test_an_archive_that_is_away_is_waited_for_a_while(away_s: float, is_told: bool) -> None:
    archive = cast(AnyArchive, FlakyArchive(3))
    async with await Following(archive, Bell(), FakeClock(), away_s).open("a", "r", -1) as found:
        if is_told:
            with pytest.raises(ResponsesAway):
                await gathered(found)
        else:
            assert await gathered(found) == [event(0), LAST]


def test_the_last_event_is_known_by_its_type_and_not_by_its_text() -> None:
    assert is_last(LAST)
    assert not is_last(b'{"type":"response.output_text.delta","delta":"response.completed"}')
    assert not is_last(b'{"type":"error"}')
    assert sse(LAST) == b"event: response.completed\ndata: " + LAST + b"\n\n"


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 4), max_size=8), st.integers(-1, 5))
async def test_whoever_follows_from_wherever_hears_each_event_once(sizes: list[int], after: int) -> None:
    rig, number = Rig(), 0
    await rig.begin()
    texts = [event(each) for each in range(sum(sizes))] + [LAST]
    await rig.say(0, *texts[: min(len(texts) - 1, 1)])
    async with await rig.following.open("a", "r", after) as found, asyncio.TaskGroup() as group:
        reading = group.create_task(gathered(found))
        for size in sizes:
            await rig.say(number, *texts[number : number + size])
            number += size
            await asyncio.sleep(0)
        await rig.archive.end("r", 1, DONE, b"{}", number, [LAST])
        rig.bell.ring("r")
        if after >= number:  # it asks for more than there is: that is an error, which the group would raise
            reading.cancel()
    if after < number:
        assert await reading == texts[after + 1 :]
