"""What a replica that tells us nothing has probably evicted: a least-recently-used model of its cache.

Knows runs, bits and capacities in blocks; nothing of hashes, and does not change a run. Engines evict the least
recently used block first, so of what we sent, the longest unused goes when more was sent than the cache can hold.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from router.prefix.runs import Run

# As traced, a run that a replica is modelled to hold.
ENTRY_BYTES = 140


@dataclass(eq=False, slots=True)
class Recency:
    """Per modelled replica, by its bit: its runs, least recently used first. `modelled` holds their bits."""

    modelled: int = 0
    num_entries: int = 0
    _capacities: dict[int, int] = field(default_factory=dict)
    _runs: "dict[int, OrderedDict[Run, None]]" = field(default_factory=dict)

    def limit(self, bit: int, capacity: int | None) -> None:
        """Model this replica with so many blocks; None: it tells us itself what it has."""
        if capacity is None:
            self.forget(bit)
            return
        self.modelled |= bit
        self._capacities[bit] = capacity
        self._runs.setdefault(bit, OrderedDict())

    def forget(self, bits: int) -> None:
        """These replicas are modelled no more."""
        for bit in [bit for bit in self._runs if bit & bits]:
            self.num_entries -= len(self._runs.pop(bit))
            del self._capacities[bit]
        self.modelled &= ~bits

    def capacity(self, bit: int) -> int | None:
        return self._capacities.get(bit)

    def use(self, bit: int, run: Run) -> None:
        """Used now. Call it for a run before its parent, so that leaves go first."""
        runs = self._runs[bit]
        if run in runs:
            runs.move_to_end(run)
        else:
            runs[run] = None
            self.num_entries += 1

    def split(self, head: Run) -> None:
        """A new run was made of the beginning of one: for those that are modelled to hold it, it and what leads to it
        count as used now."""
        for bit in self._runs:
            run: Run | None = head
            while head.holders & bit and run is not None:
                self.use(bit, run)
                run = run.parent

    def drop(self, run: Run, bits: int) -> None:
        """These replicas hold the run no more."""
        if bits & self.modelled:
            for bit, runs in self._runs.items():
                if bit & bits and run in runs:
                    del runs[run]
                    self.num_entries -= 1

    def age(self, bit: int, run: Run) -> None:
        """It is the longest unused, whatever was done to it."""
        self._runs[bit].move_to_end(run, last=False)

    def oldest(self, bit: int) -> Run | None:
        return next(iter(self._runs[bit]), None)

    def __repr__(self) -> str:
        return f"<Recency of {len(self._runs)} replicas, {self.num_entries} entries>"
