"""Which adapters a replica has in its slots, and what loading one takes: our own model, as engines show activity only.

Knows the requests that we sent there; knows no engine. Engines keep the adapters most recently used.
"""

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field

NUM_SLOTS = 8
PRIOR_LOAD_S = 0.05
# What a new sample of a load moves the estimate by, and how far off it may be taken to be.
SAMPLE_WEIGHT, MAX_RATIO = 0.2, 4.0
MIN_LOAD_S = 0.001


@dataclass(eq=False, slots=True)
class Residency:
    """`use` when a request is sent, `learn` when its first token came."""

    num_slots: int = NUM_SLOTS
    load_s: float = PRIOR_LOAD_S
    _names: "OrderedDict[str, None]" = field(default_factory=OrderedDict)

    @property
    def names(self) -> Collection[str]:
        """Those in a slot; it follows what is used."""
        return self._names.keys()

    def use(self, name: str) -> bool:
        """Was it there? It is now, and the least recently used may not be any more."""
        was_there = name in self._names
        self._names[name] = None
        self._names.move_to_end(name)
        while len(self._names) > self.num_slots:
            self._names.popitem(last=False)
        return was_there

    def learn(self, seconds: float) -> None:
        """A first token came so much later than without a load it should have."""
        sample = min(max(seconds, self.load_s / MAX_RATIO), self.load_s * MAX_RATIO)
        self.load_s = max(MIN_LOAD_S, self.load_s + SAMPLE_WEIGHT * (sample - self.load_s))

    def forget(self) -> None:
        """It restarted: nothing is loaded any more."""
        self._names.clear()

    def __repr__(self) -> str:
        return f"<Residency {', '.join(self._names) or 'nothing'}, {self.load_s * 1e3:.0f} ms a load>"
