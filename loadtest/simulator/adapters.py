"""What adapters cost a replica: time to bring one into a slot, and slower steps the more of them compute at once. Knows
the profile's numbers and which adapters lie in host memory; knows no scheduler."""

from collections import OrderedDict
from dataclasses import dataclass, field

# Milliseconds before bytes move, and bytes a millisecond: from host memory, and from the host's disk.
_HOST_MS, _HOST_BYTES_PER_MS = 1.5, 25e6
_DISK_MS, _DISK_BYTES_PER_MS = 5.0, 2.5e6


@dataclass(eq=False, slots=True)
class AdapterCosts:
    """Of one replica. `num_host_slots` adapters lie in host memory, the least recently loaded go; `step_share`: how
    much longer a step takes for each distinct adapter in it."""

    num_bytes: int
    num_host_slots: int
    step_share: float
    _in_host: "OrderedDict[str, None]" = field(default_factory=OrderedDict)

    def load_s(self, name: str) -> float:
        """Seconds to bring it into a slot, now."""
        is_near = name in self._in_host
        self._in_host[name] = None
        self._in_host.move_to_end(name)
        if len(self._in_host) > self.num_host_slots:
            self._in_host.popitem(last=False)
        if is_near:
            return (_HOST_MS + self.num_bytes / _HOST_BYTES_PER_MS) / 1e3
        return (_DISK_MS + self.num_bytes / _DISK_BYTES_PER_MS) / 1e3

    def step_factor(self, num_distinct: int) -> float:
        return 1.0 + self.step_share * num_distinct
