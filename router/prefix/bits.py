"""Which bit stands for which replica. Knows replica ids and counts of blocks; nothing of hashes or of order."""

from collections.abc import Iterator
from dataclasses import dataclass, field

# Sets of replicas whose names are kept at hand.
MAX_NAMED_SETS = 1024


@dataclass(eq=False, slots=True)
class ReplicaBits:
    """Gives each replica a bit and counts its blocks. `live` holds the bits of all replicas; `retired` those whose
    replica was removed and that runs may still carry: only once none does may a bit be used again."""

    live: int = 0
    retired: int = 0
    _positions: dict[str, int] = field(default_factory=dict)
    _names: list[str] = field(default_factory=list)
    _num_blocks: list[int] = field(default_factory=list)
    _free: list[int] = field(default_factory=list)
    _named_sets: dict[int, tuple[str, ...]] = field(default_factory=dict)

    def bit(self, replica_id: str) -> int:
        """The bit of this replica, given to it now where it has none."""
        position = self._positions.get(replica_id)
        return self._assign(replica_id) if position is None else 1 << position

    def known_bit(self, replica_id: str) -> int:
        """The bit of this replica; 0 where it has none."""
        position = self._positions.get(replica_id)
        return 0 if position is None else 1 << position

    def names(self, bits: int) -> tuple[str, ...]:
        names = self._named_sets.get(bits)
        if names is None:
            if len(self._named_sets) >= MAX_NAMED_SETS:
                self._named_sets.clear()
            names = self._named_sets[bits] = tuple(self._names[position] for position in _positions(bits))
        return names

    def num_blocks(self, replica_id: str) -> int:
        position = self._positions.get(replica_id)
        return 0 if position is None else self._num_blocks[position]

    def count(self, bit: int) -> int:
        """Blocks of the replica of this bit."""
        return self._num_blocks[bit.bit_length() - 1]

    def gain(self, bit: int, num_blocks: int) -> None:
        """The replica of this bit got so many blocks."""
        self._num_blocks[bit.bit_length() - 1] += num_blocks

    def lose(self, bits: int, num_blocks: int) -> None:
        """All replicas of these bits lost so many blocks."""
        for position in _positions(bits & self.live):
            self._num_blocks[position] -= num_blocks

    def retire(self, replica_id: str) -> None:
        position = self._positions.pop(replica_id, None)
        if position is not None:
            self.live &= ~(1 << position)
            self.retired |= 1 << position

    def take_retired(self) -> int:
        """The retired bits, now the caller's to clear from all runs and then to recycle."""
        retired, self.retired = self.retired, 0
        return retired

    def recycle(self, bits: int) -> None:
        self._free.extend(_positions(bits))

    def _assign(self, replica_id: str) -> int:
        position = self._free.pop() if self._free else self._widen()
        self._names[position], self._num_blocks[position] = replica_id, 0
        self._positions[replica_id] = position
        self.live |= 1 << position
        self._named_sets.clear()
        return 1 << position

    def _widen(self) -> int:
        self._names.append("")
        self._num_blocks.append(0)
        return len(self._names) - 1

    def __repr__(self) -> str:
        return f"{len(self._positions)} replicas in {len(self._names)} bits"


def _positions(bits: int) -> Iterator[int]:
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest
