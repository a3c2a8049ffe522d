"""Events on their way to the archive: many at a time, in order, also while it is away for a moment."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st

from router.transports.responses.here import AnyArchive
from router.transports.responses.states import ResponsesAway, ResponseState
from router.transports.responses.tape import MAX_UNSAID_BYTES, Tape


@dataclass(eq=False)
class FakeArchive:
    """Takes what is said while it is there. `num_away` calls from now on find it away; it is theirs until `is_lost`."""

    num_away: int = 0
    is_lost: bool = False
    said: list[bytes] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    states: list[ResponseState] = field(default_factory=list)

    async def say(self, id: str, fence: int, state: ResponseState, first: int, events: Sequence[bytes]) -> bool:
        await asyncio.sleep(0)
        if self.num_away > 0:
            self.num_away -= 1
            raise ResponsesAway("away")
        assert first == len(self.said)
        self.said += events
        self.batches.append(len(events))
        self.states.append(state)
        return not self.is_lost


@dataclass(eq=False)
class Heard:
    num_said: int = 0
    num_lost: int = 0


def new_tape(archive: FakeArchive, heard: Heard) -> Tape:
    def said() -> None:
        heard.num_said += 1

    def lost() -> None:
        heard.num_lost += 1

    return Tape(cast(AnyArchive, archive), "r", 1, lambda: ResponseState.IN_PROGRESS, said, lost)


def event(text: str) -> bytes:
    return f"event: e\ndata: {text}\n\n".encode()


async def ran(tape: Tape) -> None:
    async with asyncio.timeout(30):
        await tape.run()


async def test_what_came_together_is_written_together() -> None:
    archive, heard = FakeArchive(), Heard()
    tape = new_tape(archive, heard)
    tape.add(event("a") + b": a comment\n\n" + event("b"))
    tape.add(event("c"))
    tape.close()
    await ran(tape)
    assert (archive.said, archive.batches, tape.num_said) == ([b"a", b"b", b"c"], [3], 3)
    assert (heard.num_said, heard.num_lost, tape.rest()) == (1, 0, [])


async def test_an_archive_that_is_away_is_told_later() -> None:
    archive, heard = FakeArchive(num_away=1), Heard()
    tape = new_tape(archive, heard)
    tape.add(event("a"))
    async with asyncio.TaskGroup() as group:
        group.create_task(ran(tape))
        async with asyncio.timeout(30):
            while not heard.num_said:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        tape.add(event("b"))
        tape.close()
    assert archive.said == [b"a", b"b"]


async def test_what_cannot_be_written_at_the_end_is_left_to_who_ends_it() -> None:
    archive, heard = FakeArchive(num_away=1000), Heard()
    tape = new_tape(archive, heard)
    tape.add(event("a"))
    tape.close()
    await ran(tape)
    assert (tape.rest(), tape.num_said) == ([b"a"], 0)


async def test_who_has_lost_it_hears_so_once_and_writes_no_more() -> None:
    archive, heard = FakeArchive(is_lost=True), Heard()
    tape = new_tape(archive, heard)
    tape.add(event("a"))
    await ran(tape)
    assert heard.num_lost == 1


async def test_a_state_is_told_once_without_events() -> None:
    archive, heard = FakeArchive(), Heard()
    tape = new_tape(archive, heard)
    async with asyncio.TaskGroup() as group:
        group.create_task(ran(tape))
        for _ in range(3):
            tape.tell_state()
            await asyncio.sleep(0)
        async with asyncio.timeout(30):
            while not archive.states:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        tape.tell_state()
        tape.close()
    assert archive.states == [ResponseState.IN_PROGRESS]


async def test_too_much_that_is_not_written_is_given_up_and_bounded() -> None:
    archive, heard = FakeArchive(num_away=1000), Heard()
    tape = new_tape(archive, heard)
    for _ in range(5):
        tape.add(event("x" * (MAX_UNSAID_BYTES // 3)))
    assert (tape.is_broken, tape.rest()) == (True, [])


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 3), max_size=12))
async def test_each_event_is_written_once_and_in_order(sizes: list[int]) -> None:
    archive, heard = FakeArchive(), Heard()
    tape = new_tape(archive, heard)
    given = [str(number) for number in range(sum(sizes))]
    left = iter(given)
    async with asyncio.TaskGroup() as group:
        group.create_task(ran(tape))
        for size in sizes:
            tape.add(b"".join(event(next(left)) for _ in range(size)))
            await asyncio.sleep(0)
        tape.close()
    assert archive.said == [each.encode() for each in given]
    assert tape.num_said == len(given)
