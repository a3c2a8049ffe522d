"""The box between callbacks and the coroutine that empties it."""

import asyncio

from router.core import Outcome
from router.transports.outbox import MAX_UNSENT_BYTES, Outbox
from tests.fakes import turns


class Heard:
    def __init__(self) -> None:
        self.words: list[str] = []

    def pause(self) -> None:
        self.words.append("pause")

    def resume(self) -> None:
        self.words.append("resume")

    def gone(self) -> None:
        self.words.append("gone")


async def test_what_is_written_before_a_read_comes_as_one() -> None:
    box = Outbox()
    box.head(200, (), (("x-request-id", "r"),))
    box.write(b"a")
    box.write(b"b")
    box.end(Outcome.OK, is_complete=True)
    assert (await box.opened(), box.headers) == (200, (("x-request-id", "r"),))
    assert [await box.read(), await box.read()] == [b"ab", None]
    assert repr(box) == "<Outbox 200 0 bytes ok>"


async def test_a_reader_waits_for_what_comes_later() -> None:
    box = Outbox()
    reading = asyncio.ensure_future(box.read())
    await turns(3)
    box.head(200, ())
    await turns(3)
    assert not reading.done(), "a head is no payload"
    box.write(b"a")
    assert await reading == b"a"


async def test_the_end_wakes_who_waits_for_a_head() -> None:
    box = Outbox()
    opening = asyncio.ensure_future(box.opened())
    await turns(3)
    box.end(Outcome.CLIENT_GONE, is_complete=False)
    assert await opening == 0
    assert await box.read() is None


async def test_a_full_box_pauses_the_replica_until_it_has_been_emptied() -> None:
    box, heard = Outbox(), Heard()
    box.bind(heard)
    box.head(200, ())
    box.write(b"x" * MAX_UNSENT_BYTES)
    assert heard.words == []
    box.write(b"y")
    box.write(b"z")
    assert heard.words == ["pause"]
    assert len(await box.read() or b"") == MAX_UNSENT_BYTES + 2
    assert heard.words == ["pause", "resume"]
    assert box.num_unsent == 0


async def test_who_leaves_is_gone_once_and_not_after_the_end() -> None:
    box, heard = Outbox(), Heard()
    box.bind(heard)
    reading = asyncio.ensure_future(box.read())
    await turns(3)
    box.leave()
    box.leave()
    assert heard.words == ["gone"]
    assert await reading is None
    assert box.outcome is Outcome.CLIENT_GONE
    ended, unheard = Outbox(), Heard()
    ended.bind(unheard)
    ended.end(Outcome.OK, is_complete=True)
    ended.leave()
    ended.write(b"late")
    assert unheard.words == []
    assert await ended.read() is None


async def test_what_is_let_end_is_neither_read_nor_cut_off() -> None:
    box, heard = Outbox(), Heard()
    box.bind(heard)
    box.head(200, ())
    box.write(b"x" * (MAX_UNSENT_BYTES + 1))
    box.let_end()
    assert heard.words == ["pause", "resume"], "the replica may say the rest"
    box.write(b"more")
    box.leave()
    box.end(Outcome.OK, is_complete=True)
    assert (box.num_unsent, await box.read(), heard.words) == (0, None, ["pause", "resume"])
