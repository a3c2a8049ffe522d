"""What of the model lies where while the engine sleeps.

Knows the runner's tensors and how to have them back. Must not know when to sleep, sequences or blocks.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from engine.model.decoder import Decoder
from engine.model.kv_cache import KVCache
from engine.runner import Runner

T = TypeVar("T")
_HOST = torch.device("cpu")


@dataclass(eq=False, slots=True)
class Residence:
    """`load` reads the weights from their files again; `allocate` makes the device's KV cache and the host's. Level 1
    frees the KV and moves the weights into host memory, where on a CPU they are already; level 2 frees them too."""

    runner: Runner
    device: torch.device
    load: Callable[[], Decoder]
    allocate: Callable[[], tuple[KVCache, KVCache | None]]
    _parked: Decoder | None = None

    def sleep(self, level: int) -> None:
        runner = self.runner
        runner.cache = KVCache(runner.cache.blocks[:0].clone())
        runner.host_cache = None
        if runner.slots is not None:
            runner.slots.clear()
        if level == 2:
            runner.model = self._parked = None
        elif self.device != _HOST and runner.model is not None:
            runner.model, self._parked = None, moved(runner.model, _HOST)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def wake(self) -> None:
        """Raises ModelError if the files are no more what they were, MemoryError if there is no room."""
        runner = self.runner
        if runner.model is None:
            runner.model = self.load() if self._parked is None else moved(self._parked, self.device)
            self._parked = None
        runner.cache, runner.host_cache = self.allocate()


def moved(part: T, device: torch.device) -> T:
    """The same with all its tensors on `device`; what is shared stays shared."""
    result: T = _moved(part, device, {})
    return result


def _moved(part: Any, device: torch.device, done: dict[int, Tensor]) -> Any:
    if isinstance(part, Tensor):
        if id(part) not in done:
            done[id(part)] = part.to(device)
        return done[id(part)]
    if isinstance(part, tuple):
        return tuple(_moved(item, device, done) for item in part)
    if is_dataclass(part) and not isinstance(part, type):
        parts = {each.name: _moved(getattr(part, each.name), device, done) for each in fields(part) if each.init}
        return replace(part, **parts)
    return part
