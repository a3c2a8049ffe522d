"""The order of turns in one conversation: answered one after the other, in the order they came. Knows ids and order;
knows nothing of what a turn says or of who answers it."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from router.errors import InvalidRequest, Overloaded

T = TypeVar("T")

MAX_WAITING_TURNS = 16


@dataclass(eq=False, slots=True)
class Turns(Generic[T]):
    """`param` is what a client calls a turn's id. While `is_held()` none begins: what a prefill computes would be
    computed twice."""

    param: str
    is_held: Callable[[], bool] = lambda: False
    most_waiting: int = MAX_WAITING_TURNS
    current: str | None = None
    _waiting: deque[tuple[str, T]] = field(default_factory=deque)

    def add(self, id: str, turn: T) -> None:
        """It waits for its turn: `next` gives it. Raises InvalidRequest or Overloaded."""
        if id == self.current or any(id == each for each, _ in self._waiting):
            raise InvalidRequest(f"The id `{id}` is in use: that turn is under way.", param=self.param)
        if len(self._waiting) >= self.most_waiting:
            raise Overloaded(f"At most {self.most_waiting} turns may wait.", param=self.param)
        self._waiting.append((id, turn))

    def next(self) -> T | None:
        """The turn that begins now, if one may; who gets it owes one `end`."""
        if self.current is not None or not self._waiting or self.is_held():
            return None
        self.current, turn = self._waiting.popleft()
        return turn

    def end(self) -> None:
        self.current = None

    def withdraw(self, id: str) -> bool:
        """Did it wait? It does not any more."""
        before = len(self._waiting)
        self._waiting = deque(each for each in self._waiting if each[0] != id)
        return len(self._waiting) < before

    def clear(self) -> None:
        """None that waits will come."""
        self._waiting.clear()

    @property
    def is_idle(self) -> bool:
        return self.current is None and not self._waiting

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def __repr__(self) -> str:
        return f"<Turns {self.current or 'none'} under way, {len(self._waiting)} wait>"
