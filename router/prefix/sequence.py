"""The numbers of a stream of batches: what is next, what was missed, when the engine began anew. Knows numbers and
digests of batches; nothing of sockets or of what is in a batch."""

from dataclasses import dataclass
from enum import Enum

from xxhash import xxh3_64_intdigest


class Step(Enum):
    NEXT = "it follows the one before"
    OLD = "it was replayed before it came"
    GAP = "some before it were missed"
    RESTART = "the stream went back: another life of the engine"


@dataclass(eq=False, slots=True)
class Sequence:
    """`last` was taken in, by the stream itself or from a replay; None: nothing yet."""

    last: int | None = None
    _streamed: int | None = None
    _digest: int = 0

    def see(self, number: int) -> Step:
        """Where a batch of the stream stands. It is taken in by `take` alone."""
        before, self._streamed = self._streamed, number
        if before is not None and number <= before:
            return Step.RESTART
        if self.last is not None and number <= self.last:
            return Step.OLD
        return Step.NEXT if number == self.wanted else Step.GAP

    @property
    def wanted(self) -> int:
        return 0 if self.last is None else self.last + 1

    def take(self, number: int, payload: bytes) -> None:
        self.last, self._digest = number, xxh3_64_intdigest(payload)

    def is_last(self, payload: bytes) -> bool:
        """Was this the last one taken in? Of the same number, another means another life of the engine."""
        return xxh3_64_intdigest(payload) == self._digest

    def restart(self) -> None:
        """Nothing of this life was taken in."""
        self.last = None

    def skip_to(self, number: int) -> None:
        """What is before it cannot be had."""
        self.last = number - 1 if number else None

    def __repr__(self) -> str:
        return f"<Sequence at {self.last}>"
