"""What the supervisor asks its processes for others who ask: the feed of caches, a worker of decisions. Knows the
messages; knows no processes."""

import asyncio
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from router.core import Headers
from router.workers import warming
from router.workers.frames import Explain, Explained, Export, Exported, Find, Found, Recall

TIMEOUT_S = 1.0

Question = Find | Export | Recall | Explain
Answer = Found | Exported | Explained


@dataclass(eq=False, slots=True)
class Questions:
    """`tell(question)` is False where nobody is there just now who could answer it."""

    tell: Callable[[Question], bool]
    _numbers: "count[int]" = field(default_factory=count, init=False)
    _open: "dict[int, asyncio.Future[Answer]]" = field(default_factory=dict, init=False)

    async def match(self, chain: Sequence[int]) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """Leading blocks of a chain that replicas hold, in all and on their devices, as the feed knows; nothing where
        it does not answer."""
        answer = await self._ask(Find(next(self._numbers), array("Q", chain).tobytes()))
        return (answer.matches, answer.on_device) if isinstance(answer, Found) else ({}, {})

    async def export(self) -> bytes:
        """All that the feed knows of caches, as `warming.py` packs it."""
        answer = await self._ask(Export(next(self._numbers)))
        return answer.packed if isinstance(answer, Exported) else warming.pack([])

    async def lessons(self) -> bytes:
        """All that workers have learned of replicas, likewise."""
        answer = await self._ask(Recall(next(self._numbers)))
        return answer.packed if isinstance(answer, Exported) else warming.pack_lessons([])

    async def explain(self, body: bytes, headers: Headers) -> tuple[int, bytes] | None:
        """Status and JSON, as a worker decides by what it knows; None where none answers."""
        answer = await self._ask(Explain(next(self._numbers), body, headers))
        return (answer.status, answer.answer) if isinstance(answer, Explained) else None

    def heard(self, answer: Answer) -> None:
        """One that comes too late says nothing."""
        waiting = self._open.get(answer.number)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    async def _ask(self, question: Question) -> Answer | None:
        waiting = self._open[question.number] = asyncio.Future[Answer]()
        try:
            if self.tell(question):
                async with asyncio.timeout(TIMEOUT_S):
                    return await waiting
        except TimeoutError:
            pass
        finally:
            del self._open[question.number]
        return None

    def __repr__(self) -> str:
        return f"<Questions {len(self._open)} open>"
