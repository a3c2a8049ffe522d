"""Which adapters a replica has in its slots, and what loading one takes: our own model, corrected by what it reports.

Knows the requests that we sent there and what its metrics say; knows no engine. Engines keep the adapters most recently
used; some show where each lies, others only which are at work.
"""

from collections import Counter, OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import islice

NUM_SLOTS = 8
PRIOR_LOAD_S = 0.05
# What a new sample of a load moves the estimate by, and how far off it may be taken to be.
SAMPLE_WEIGHT, MAX_RATIO = 0.2, 4.0
MIN_LOAD_S = 0.001


@dataclass(frozen=True, slots=True)
class Slots:
    """A replica's own report, as it stood `at` that time or later. `resident` are those in a slot, None where it shows
    only which are `active`, with requests that run or wait; `num_slots` is None where it does not say."""

    at: float
    num_slots: int | None = None
    resident: frozenset[str] | None = None
    active: frozenset[str] = frozenset()


@dataclass(eq=False, slots=True)
class Residency:
    """`use` when a request is sent, `learn` when its first token came, `leave` when it ended, `report` what the replica
    says. One that is at work keeps its slot; where all are, more of them wait."""

    num_slots: int = NUM_SLOTS
    load_s: float = PRIOR_LOAD_S
    num_loads: int = 0
    # With when each was used last, the least recently used first.
    _names: "OrderedDict[str, float]" = field(default_factory=OrderedDict)
    # Open requests of ours for each adapter, and adapters that only others have at work.
    _open: Counter[str] = field(default_factory=Counter)
    _others: frozenset[str] = frozenset()

    @property
    def names(self) -> Collection[str]:
        """Those in a slot; it follows what is used."""
        return self._names.keys()

    @property
    def num_free(self) -> int:
        """Slots in which nothing is at work; below 0, so many adapters wait for one."""
        return self.num_slots - len(self._open) - len(self._others - self._open.keys())

    def use(self, name: str, now: float) -> bool:
        """Was it there? It is now, and the least recently used may not be any more."""
        was_there = name in self._names
        self._names[name] = now
        self._names.move_to_end(name)
        self._open[name] += 1
        self._trim()
        return was_there

    def leave(self, name: str) -> None:
        """A request that used it has ended."""
        self._open[name] -= 1
        if not self._open[name]:
            del self._open[name]
            self._trim()

    def learn(self, seconds: float) -> None:
        """A first token came so much later than without a load it should have."""
        self.num_loads += 1
        sample = min(max(seconds, self.load_s / MAX_RATIO), self.load_s * MAX_RATIO)
        self.load_s = max(MIN_LOAD_S, self.load_s + SAMPLE_WEIGHT * (sample - self.load_s))

    def report(self, slots: Slots) -> None:
        """Take in what it says. What was sent there since it was asked may not be in the report: that stands."""
        self.num_slots = slots.num_slots or self.num_slots
        self._others = slots.active - self._open.keys()
        if slots.resident is not None:
            there = slots.resident | slots.active
            for name in [name for name, used in self._names.items() if name not in there and used < slots.at]:
                del self._names[name]
            for name in sorted(slots.resident - self._names.keys()):
                self._names[name] = float("-inf")
                self._names.move_to_end(name, last=False)
        for name in sorted(slots.active, key=lambda name: self._names.get(name, slots.at)):
            self._names.setdefault(name, slots.at)
            self._names.move_to_end(name)
        self._trim()

    def forget(self) -> None:
        """It restarted: nothing is loaded any more, and what a load takes is to be learned anew."""
        self.num_loads = 0
        self._names.clear()
        self._others = frozenset()

    def _trim(self) -> None:
        num_over = len(self._names) - self.num_slots
        if num_over > 0:
            for name in list(islice((name for name in self._names if name not in self._open), num_over)):
                del self._names[name]

    def __repr__(self) -> str:
        return f"<Residency {', '.join(self._names) or 'nothing'}, {self.load_s * 1e3:.0f} ms a load>"
