"""When blocks were last used, in generations. Knows block hashes as numbers; nothing of replicas or of the cap."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class Uses:
    """Lists of used blocks by generation, oldest generation first, in each in order of use.

    A block that is used again in a later generation is listed there too, which makes its earlier use void; the owner
    knows which is which. `total` counts the uses in all lists, at 8 bytes each.
    """

    newest: int = 0
    total: int = 0
    _lists: "dict[int, array[int]]" = field(default_factory=lambda: {0: array("Q")})

    def begin(self) -> Sequence[int]:
        """Start a generation. Returns those before it, oldest first."""
        earlier = list(self._lists)
        self.newest += 1
        self._lists[self.newest] = array("Q")
        return earlier

    def begin_if_full(self, size: int) -> None:
        if len(self._lists[self.newest]) >= max(1, size):
            self.begin()

    def record(self, blocks: list[int]) -> None:
        self._lists[self.newest].fromlist(blocks)
        self.total += len(blocks)

    def pop_oldest(self, limit: int) -> Iterator[tuple[int, int]]:
        """At most `limit` last uses of the oldest generation, latest first: block and generation."""
        oldest = next(generation for generation, uses in self._lists.items() if uses)
        uses = self._lists[oldest]
        popped = uses[-limit:]
        del uses[-limit:]
        self.total -= len(popped)
        self._drop_if_empty(oldest)
        return ((block, oldest) for block in reversed(popped))

    def listed(self, generation: int) -> Sequence[int]:
        """The blocks of a generation, none once it is gone. May shrink while it is read; its rest stays in order."""
        return self._lists.get(generation, ())

    def replace(self, generation: int, blocks: "array[int]") -> None:
        """What is left of a generation; nothing happens where it is gone."""
        if generation in self._lists:
            self.total += len(blocks) - len(self._lists[generation])
            self._lists[generation] = blocks
            self._drop_if_empty(generation)

    def _drop_if_empty(self, generation: int) -> None:
        if generation != self.newest and not self._lists[generation]:
            del self._lists[generation]

    def __repr__(self) -> str:
        return f"<Uses {self.total} in {len(self._lists)} generations>"
