"""What is told is taken in in its order, by slices of time, and never beyond its bounds."""

import asyncio
from array import array

import pytest

from router.prefix.caches import Caches
from router.prefix.changes import Emptied, held
from router.prefix.index import BlockIndex
from router.workers import intake
from router.workers.intake import Intake, Overrun
from tests.fakes import turns
from tests.router.nouns import FakeClock


class SlowIndex(BlockIndex):
    """Each change takes 0.2 ms."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(2**20)
        self.clock = clock

    def store(self, *args: object, **fields: object) -> None:
        self.clock.now += 0.0002
        super().store(*args, **fields)  # type: ignore[arg-type]


def make_intake() -> tuple[Intake, SlowIndex]:
    clock = FakeClock()
    index = SlowIndex(clock)
    return Intake(Caches(index, lambda _: True, listens=False), lambda id: id != "unknown", clock, clock), index


async def test_a_turn_takes_a_millisecond_and_the_rest_waits() -> None:
    intake_, index = make_intake()
    intake_.told("a", [held(None, [number]) for number in range(10)])
    assert index.total_blocks == 0
    taken = []
    while index.total_blocks < 10:
        before = index.total_blocks
        await asyncio.sleep(0)
        taken.append(index.total_blocks - before)
    assert taken == [5, 5]
    assert (intake_.num_waiting_blocks, repr(intake_)) == (0, "<Intake 0 waiting>")


async def test_dispatches_and_changes_keep_their_order() -> None:
    intake_, index = make_intake()
    intake_.dispatched([("a", array("Q", [1, 2]).tobytes())])
    intake_.told("a", [Emptied(), held(None, [7])])
    intake_.dispatched([("unknown", array("Q", [1]).tobytes()), ("b", array("Q", [7]).tobytes()), ("b", b"")])
    await turns()
    assert index.match([1, 2]) == {}
    assert index.match([7]) == {"a": 1}


async def test_too_much_is_refused_and_all_of_it_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "MAX_WAITING_BLOCKS", 5)
    intake_, index = make_intake()
    intake_.told("a", [held(None, range(5))])
    with pytest.raises(Overrun, match="more than 5 blocks"):
        intake_.told("a", [held(None, [9])])
    await asyncio.sleep(0)
    assert (index.total_blocks, intake_.num_waiting_blocks) == (0, 0)
