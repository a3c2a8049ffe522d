"""Low-rank additions to the projections: many adapters in one batch, each on its own rows.

Knows the adapters in the device's slots and the arithmetic. Must not know files, adapters' names, requests or
scheduling.
"""

from collections.abc import Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LowRank:
    """What is added to `inputs @ weight.T`: `inputs @ inner.T @ outer.T`; [rank, in] and [out, rank]."""

    inner: Tensor
    outer: Tensor

    def to(self, dtype: torch.dtype, device: torch.device) -> "LowRank":
        return LowRank(self.inner.to(device, dtype), self.outer.to(device, dtype))


Layers = tuple[Mapping[str, LowRank], ...]
"""An adapter: for each layer, the addition to each projection that has one."""


@dataclass(eq=False, slots=True)
class Additions:
    """For one batch: the rows of each adapter that has any, None for all rows."""

    parts: tuple[tuple[Tensor | None, Layers], ...]

    def __call__(self, outputs: Tensor, inputs: Tensor, layer: int, projection: str) -> None:
        """Adds to `outputs` [rows, out], in place, what the adapters make of `inputs` [rows, in]."""
        for rows, layers in self.parts:
            low_rank = layers[layer].get(projection)
            if low_rank is None:
                continue
            inner, outer = low_rank.inner.T, low_rank.outer.T
            if rows is None:
                outputs.add_(inputs.to(inner.dtype) @ inner @ outer)
            else:
                added = inputs.index_select(0, rows).to(inner.dtype) @ inner @ outer
                outputs.index_add_(0, rows, added.to(outputs.dtype))


@dataclass(eq=False, slots=True)
class Slots:
    """The adapters in host memory, and those that lie in the device's slots, as `dtype` on `device`."""

    dtype: torch.dtype
    device: torch.device
    _kept: "WeakKeyDictionary[object, Layers]" = field(default_factory=WeakKeyDictionary)
    _layers: dict[int, Layers] = field(default_factory=dict)

    def keep(self, adapter: object, layers: Layers) -> None:
        """In host memory, for as long as somebody refers to `adapter`."""
        self._kept[adapter] = layers

    def place(self, slot: int, adapter: object) -> None:
        """Replaces what is there. On a CPU in the same format, nothing is copied."""
        self._layers[slot] = tuple(
            {name: low_rank.to(self.dtype, self.device) for name, low_rank in projections.items()}
            for projections in self._kept[adapter]
        )

    def clear(self) -> None:
        """Empties the slots; what is in host memory stays."""
        self._layers.clear()

    def additions(self, rows_of_slots: Mapping[int, List[int]], num_rows: int) -> Additions | None:
        """`rows_of_slots`: the rows, of the batch's `num_rows`, that each slot's adapter applies to; None for none."""
        parts = []
        for slot, rows in rows_of_slots.items():
            layers = self._layers[slot]
            is_all = len(rows) == num_rows
            parts.append((None if is_all else torch.tensor(rows, dtype=torch.long, device=self.device), layers))
        return Additions(tuple(parts)) if parts else None
