"""Responses that later ones may follow, in this process: the oldest go when there are too many bytes or they are too
old. Knows records as bytes; knows nothing of what they say."""

from collections import OrderedDict
from dataclasses import dataclass, field

from router.ports import Clock

MAX_BYTES = 64 * 2**20
MAX_AGE_S = 30 * 24 * 3600.0


@dataclass(eq=False, slots=True)
class KeptHere:
    """`ports.ResponseStore` in memory."""

    clock: Clock
    max_bytes: int = MAX_BYTES
    max_age_s: float = MAX_AGE_S
    num_bytes: int = 0
    _records: OrderedDict[tuple[str, str], tuple[float, bytes]] = field(default_factory=OrderedDict)

    async def get(self, owner: str, id: str) -> bytes | None:
        found = self._records.get((owner, id))
        if found is None or self.clock() - found[0] > self.max_age_s:
            return None
        return found[1]

    async def put(self, owner: str, id: str, record: bytes) -> None:
        self._drop((owner, id))
        self._records[owner, id] = (self.clock(), record)
        self.num_bytes += len(record)
        while self.num_bytes > self.max_bytes:
            self._drop(next(iter(self._records)))

    async def delete(self, owner: str, id: str) -> bool:
        return self._drop((owner, id))

    def _drop(self, key: tuple[str, str]) -> bool:
        found = self._records.pop(key, None)
        if found is not None:
            self.num_bytes -= len(found[1])
        return found is not None

    def __repr__(self) -> str:
        return f"<KeptHere {len(self._records)} responses, {self.num_bytes} bytes>"
