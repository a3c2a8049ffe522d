"""Long texts to token ids in threads, each once however many requests wait for it. Knows keys, texts and futures."""

import asyncio
from array import array
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from router.prefix.tokens import PromptTokenizer

T = TypeVar("T")

NUM_THREADS = 2

Encoded = Mapping[int, "array[int]"]


@dataclass(eq=False, slots=True)
class _Flight:
    """Texts on their way through a thread; given up when nobody waits any more."""

    ids: asyncio.Future[Encoded]
    num_waiting: int = 0


@dataclass(eq=False, slots=True)
class Flights:
    """For one event loop. Equal keys must mean equal texts."""

    _threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(NUM_THREADS, "tokenize"))
    _by_key: dict[int, _Flight] = field(default_factory=dict)

    async def encode(
        self, tokenizer: PromptTokenizer, keys: Sequence[int], texts: Sequence[bytes]
    ) -> "list[array[int]]":
        """The ids of each text. What is on its way already is waited for; a cancel leaves the others that wait be."""
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._by_key}
        if new:
            self._start(tokenizer, new)
        flights = {self._by_key[key]: None for key in keys}
        for flight in flights:
            flight.num_waiting += 1
        try:
            await asyncio.wait([flight.ids for flight in flights])
        finally:
            for flight in flights:
                self._leave(flight)
        ids = {key: encoded for flight in flights for key, encoded in flight.ids.result().items()}
        return [ids[key] for key in keys]

    async def run(self, work: Callable[[], T]) -> T:
        """What this makes, in one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """Texts that wait for a thread are given up; idle threads end."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _start(self, tokenizer: PromptTokenizer, texts: Mapping[int, bytes]) -> None:
        flight = _Flight(asyncio.get_running_loop().run_in_executor(self._threads, _encoded, tokenizer, texts))
        self._by_key.update(dict.fromkeys(texts, flight))

    def _leave(self, flight: _Flight) -> None:
        flight.num_waiting -= 1
        if not flight.num_waiting:
            flight.ids.cancel()
            self._by_key = {key: other for key, other in self._by_key.items() if other is not flight}

    def __repr__(self) -> str:
        return f"<Flights {len(set(self._by_key.values()))} on their way>"


def _encoded(tokenizer: PromptTokenizer, texts: Mapping[int, bytes]) -> Encoded:
    return dict(zip(texts, tokenizer.encode_all(texts.values()), strict=True))
