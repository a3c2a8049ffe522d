"""What one connection remembers of the conversations on it, so that the next turn needs no store. Knows messages; knows
nothing of what is stored."""

from collections import OrderedDict
from dataclasses import dataclass, field

import msgspec

from router.transports.responses.turn import Messages


@dataclass(eq=False, slots=True)
class Recent:
    """The latest few, as long as they are `max_bytes` together; the oldest go."""

    max_bytes: int
    most: int = 33
    num_bytes: int = 0
    _kept: OrderedDict[str, tuple[Messages, int]] = field(default_factory=OrderedDict)

    def find(self, id: str) -> Messages | None:
        """The conversation up to the end of that response."""
        found = self._kept.get(id)
        return None if found is None else found[0]

    def keep(self, id: str, messages: Messages) -> None:
        size = len(msgspec.json.encode(messages))
        self._kept[id] = messages, size
        self.num_bytes += size
        while len(self._kept) > self.most or self.num_bytes > self.max_bytes:
            self._drop(next(iter(self._kept)))

    def _drop(self, id: str) -> None:
        _, size = self._kept.pop(id, ((), 0))
        self.num_bytes -= size

    def __repr__(self) -> str:
        return f"<Recent {len(self._kept)} conversations, {self.num_bytes} bytes>"
