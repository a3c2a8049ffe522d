"""Long texts in threads: each once, and a cancel of one who waits harms no other."""

import asyncio
import threading
from array import array
from collections.abc import Iterable
from typing import Any, cast

import pytest

from router.prefix.flights import NUM_THREADS, Flights
from router.prefix.tokens import PromptTokenizer


class SlowTokenizer:
    """Encodes a text as its bytes, once its gate is open."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.gate = threading.Event()

    def encode_all(self, texts: Iterable[bytes]) -> "list[array[int]]":
        taken = list(texts)
        self.seen += taken
        self.gate.wait(20)
        return [array("I", list(text)) for text in taken]


def fly(flights: Flights, tokenizer: SlowTokenizer, *texts: bytes) -> "asyncio.Task[Any]":
    keys = [hash(text) for text in texts]
    return asyncio.create_task(flights.encode(cast(PromptTokenizer, tokenizer), keys, texts))


async def started(flights: Flights) -> None:
    await asyncio.sleep(0)


async def test_equal_texts_at_once_are_encoded_once() -> None:
    flights, tokenizer = Flights(), SlowTokenizer()
    one, other = fly(flights, tokenizer, b"ab", b"c"), fly(flights, tokenizer, b"ab", b"d")
    await started(flights)
    tokenizer.gate.set()
    assert [list(ids) for ids in await one] == [[97, 98], [99]]
    assert [list(ids) for ids in await other] == [[97, 98], [100]]
    assert sorted(tokenizer.seen) == [b"ab", b"c", b"d"]
    assert repr(flights) == "<Flights 0 on their way>"
    flights.close()


async def test_who_began_may_leave_and_the_others_get_their_ids() -> None:
    flights, tokenizer = Flights(), SlowTokenizer()
    one, other = fly(flights, tokenizer, b"ab"), fly(flights, tokenizer, b"ab")
    await started(flights)
    one.cancel()
    with pytest.raises(asyncio.CancelledError):
        await one
    tokenizer.gate.set()
    assert [list(ids) for ids in await other] == [[97, 98]]
    assert tokenizer.seen == [b"ab"]
    flights.close()


async def test_what_nobody_waits_for_any_more_is_not_begun_and_can_be_asked_for_again() -> None:
    flights, tokenizer = Flights(), SlowTokenizer()
    busy = [fly(flights, tokenizer, bytes([at])) for at in range(NUM_THREADS)]
    left = [fly(flights, tokenizer, b"xy"), fly(flights, tokenizer, b"xy")]
    await started(flights)
    for task in left:
        task.cancel()
    await asyncio.wait(left)
    again = fly(flights, tokenizer, b"xy", b"z")
    await started(flights)
    tokenizer.gate.set()
    await asyncio.gather(*busy)
    assert [list(ids) for ids in await again] == [[120, 121], [122]]
    assert sorted(tokenizer.seen) == [b"\x00", b"\x01", b"xy", b"z"]
    flights.close()


async def test_a_failure_reaches_all_who_wait_and_is_not_kept() -> None:
    flights, tokenizer = Flights(), SlowTokenizer()
    tokenizer.gate = cast(threading.Event, None)
    tasks = [fly(flights, tokenizer, b"ab"), fly(flights, tokenizer, b"ab")]
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [AttributeError, AttributeError]
    tokenizer.gate = threading.Event()
    tokenizer.gate.set()
    assert [list(ids) for ids in await fly(flights, tokenizer, b"ab")] == [[97, 98]]
    flights.close()


async def test_an_equal_text_twice_in_one_prompt_counts_twice() -> None:
    flights, tokenizer = Flights(), SlowTokenizer()
    tokenizer.gate.set()
    assert [list(ids) for ids in await fly(flights, tokenizer, b"a", b"b", b"a")] == [[97], [98], [97]]
    flights.close()
