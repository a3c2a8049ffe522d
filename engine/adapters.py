"""Which LoRA adapters there are, and which of them lie in the device's slots.

Knows names, slots and how many running sequences use each. Must not know weights, tensors or scheduling order.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Generic, NamedTuple, TypeVar

Weights = TypeVar("Weights")


class AdapterError(ValueError):
    """An adapter that cannot be had; the message is for the client."""


class UnknownAdapter(AdapterError):
    """No adapter of that name is loaded."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class Adapter:
    """An adapter in host memory. `digest` is of its weights; `load` numbers its loading in this process, from 1: a name
    may come again.

    `is_pinned`: it never leaves to make room. `is_gone`: unloaded; the sequences that already have it go on.
    """

    name: str
    path: str
    rank: int
    digest: int
    load: int
    is_pinned: bool = False
    slot: int | None = None
    num_running: int = 0
    is_gone: bool = False

    def __repr__(self) -> str:
        place = "in host memory" if self.slot is None else f"in slot {self.slot}"
        return f"<Adapter {self.name} rank {self.rank} {place} {self.num_running} running{' gone' * self.is_gone}>"


@dataclass(frozen=True, slots=True)
class ReadAdapter(Generic[Weights]):
    """An adapter as it was read from disk. `digest` tells its weights from others of the same name."""

    rank: int
    digest: int
    weights: Weights


class Placement(NamedTuple):
    """Before the next step, the slot must hold this adapter."""

    adapter: Adapter
    slot: int


class AdapterSlots:
    """A slot is given to an adapter when a sequence with it starts to run, and taken from the least recently used
    one that runs nothing. So are the places in host memory, of which there are `max_loaded`, None for any number."""

    __slots__ = ("_by_name", "_free", "_loads", "_order", "_placements", "max_loaded", "num_crowded_out", "num_slots")

    def __init__(self, num_slots: int = 0, max_loaded: int | None = None) -> None:
        self.num_slots = num_slots
        self.max_loaded = max_loaded
        self.num_crowded_out = 0
        self._free = list(reversed(range(num_slots)))
        # Both with the least recently used first.
        self._by_name: OrderedDict[str, Adapter] = OrderedDict()
        self._order: OrderedDict[Adapter, None] = OrderedDict()
        self._placements: list[Placement] = []
        self._loads = count(1)

    def __iter__(self) -> Iterator[Adapter]:
        return iter(list(self._by_name.values()))

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def next_load(self) -> int:
        return next(self._loads)

    def check_new(self, name: str) -> None:
        """Raises AdapterError if the name is taken, there are no slots at all, or host memory is full of adapters that
        stay."""
        if self.num_slots == 0:
            raise AdapterError("this engine was started with no room for adapters (--max-loras 0)")
        if name in self._by_name:
            raise AdapterError(f"the adapter {name} is loaded already; unload it first")
        if self._is_full and self._oldest() is None:
            raise AdapterError(
                f"{len(self)} adapters are loaded and none can leave (--max-cpu-loras): each is in use or was named at "
                "the start; unload one first"
            )

    def crowd_out(self) -> Adapter | None:
        """Removes the one that has to leave before another is added, if one has to."""
        oldest = self._oldest() if self._is_full else None
        if oldest is not None:
            self.num_crowded_out += 1
            self.remove(oldest.name)
        return oldest

    def add(self, adapter: Adapter) -> None:
        """Raises AdapterError as `check_new` does."""
        self.check_new(adapter.name)
        self._by_name[adapter.name] = adapter

    def remove(self, name: str) -> Adapter:
        """Raises UnknownAdapter."""
        adapter = self.find(name)
        del self._by_name[name]
        adapter.is_gone = True
        self._vacate_if_gone(adapter)
        return adapter

    def find(self, name: str) -> Adapter:
        """Raises UnknownAdapter."""
        adapter = self._by_name.get(name)
        if adapter is None:
            raise UnknownAdapter(f"the adapter {name} is not loaded")
        return adapter

    def can_take(self, adapter: Adapter) -> bool:
        return adapter.slot is not None or bool(self._free) or self._idle() is not None

    def take(self, adapter: Adapter) -> None:
        """One more running sequence. The adapter gets a slot if it has none: ask `can_take` before."""
        if adapter.slot is None:
            adapter.slot = self._free.pop() if self._free else self._vacate_oldest()
            self._placements.append(Placement(adapter, adapter.slot))
        self._order[adapter] = None
        self._order.move_to_end(adapter)
        if not adapter.is_gone:
            self._by_name.move_to_end(adapter.name)
        adapter.num_running += 1

    def leave(self, adapter: Adapter) -> None:
        """One running sequence less."""
        adapter.num_running -= 1
        self._vacate_if_gone(adapter)

    def take_placements(self) -> tuple[Placement, ...]:
        """What has to be put into slots before the next step, in order."""
        if not self._placements:
            return ()
        placements, self._placements = tuple(self._placements), []
        return placements

    def vacate_all(self) -> None:
        """The slots' contents are lost. Nothing may be running."""
        for adapter in list(self._order):
            self._vacate(adapter)
        self._placements.clear()

    @property
    def _is_full(self) -> bool:
        return self.max_loaded is not None and len(self) >= self.max_loaded

    def _oldest(self) -> Adapter | None:
        """The least recently used that may leave host memory."""
        loaded = self._by_name.values()
        return next((adapter for adapter in loaded if not adapter.is_pinned and not adapter.num_running), None)

    def _idle(self) -> Adapter | None:
        return next((adapter for adapter in self._order if adapter.num_running == 0), None)

    def _vacate_oldest(self) -> int:
        idle = self._idle()
        assert idle is not None, "no slot is idle"
        self._vacate(idle)
        return self._free.pop()

    def _vacate(self, adapter: Adapter) -> None:
        assert adapter.slot is not None
        self._free.append(adapter.slot)
        adapter.slot = None
        del self._order[adapter]

    def _vacate_if_gone(self, adapter: Adapter) -> None:
        if adapter.is_gone and adapter.num_running == 0 and adapter.slot is not None:
            self._vacate(adapter)

    def __repr__(self) -> str:
        return f"<AdapterSlots {len(self._order)} of {self.num_slots} taken, {len(self)} adapters>"
