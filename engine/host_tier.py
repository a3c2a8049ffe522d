"""The second tier of KV blocks, in host memory: what the device had no room for, least recently used first out.

Knows host block ids and prefixes. Must not know the device's blocks or who asks for what.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator
from collections.abc import Sequence as List
from contextlib import contextmanager

from engine.prefixes import Prefix


class HostTier:
    """free + cached == total. A prefix that was loaded back stays here as well: leaving the device again is free."""

    __slots__ = ("_free", "_order", "num_blocks")

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = deque(range(num_blocks))
        self._order: OrderedDict[Prefix, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return self.num_blocks - len(self._free)

    def oldest_if_full(self) -> Prefix | None:
        """Whom a new one would replace; None while there is room, or when all are being kept."""
        return None if self._free else next(iter(self._order), None)

    def add(self, prefix: Prefix) -> bool:
        """Gives it a host block; False if there is none free."""
        if not self._free:
            return False
        prefix.host_block = self._free.popleft()
        self._order[prefix] = None
        return True

    def touch(self, prefix: Prefix) -> None:
        self._order.move_to_end(prefix)

    def remove(self, prefix: Prefix) -> None:
        assert prefix.host_block is not None
        del self._order[prefix]
        self._free.append(prefix.host_block)
        prefix.host_block = None

    @contextmanager
    def keeping(self, prefixes: List[Prefix]) -> Iterator[None]:
        """Inside, none of them is the oldest; afterwards they are the newest, heads last."""
        for prefix in prefixes:
            del self._order[prefix]
        yield
        for prefix in reversed(prefixes):
            self._order[prefix] = None

    def __repr__(self) -> str:
        return f"<HostTier {self.num_free} free {self.num_cached} cached>"
