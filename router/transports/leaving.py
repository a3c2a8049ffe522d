"""Flows of answers that an errand of our own makes, before or instead of a replica's. Knows errands; knows nothing of
what they do."""

import asyncio
from dataclasses import dataclass, field

from router.errand import Errand


@dataclass(eq=False, slots=True)
class Leaving:
    """A Flow for as long as nothing is under way for a client but its errand, which is known once it is made."""

    errand: Errand | None = None

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def gone(self) -> None:
        if self.errand is not None:
            self.errand.cancel()


@dataclass(eq=False, slots=True)
class Valve:
    """A Flow of an answer that is poured out piece by piece: who pours waits for `open`."""

    leaving: Leaving
    open: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.open.set()

    def pause(self) -> None:
        self.open.clear()

    def resume(self) -> None:
        self.open.set()

    def gone(self) -> None:
        self.leaving.gone()
