"""Demands and places for load tests of admission. Knows the router's nouns; measures nothing."""

from collections.abc import Callable
from dataclasses import dataclass, field

from router.core import Decision, Demand, Lease, Pool, Prompt, Replica, Request, Standing, Surface
from router.spec import ReplicaSpec

POOL = Pool("m")
PROMPT_TOKENS, OUTPUT_TOKENS = 512, 128
_PROMPT = Prompt(PROMPT_TOKENS, (), 16)


def demand(id: str, now: float, timeout_s: float, standing: Standing) -> Demand:
    """One request of this size, made now."""
    request = Request(id, Surface.CHAT, "m", b"", now, now + timeout_s, max_tokens=OUTPUT_TOKENS)
    return Demand(request, POOL, _PROMPT, None, frozenset(), standing)


@dataclass(eq=False, slots=True)
class Places:
    """`ports.Placer` over so many places. `on_free()` is called when one becomes free."""

    number: int
    clock: Callable[[], float]
    on_free: Callable[[], None] = lambda: None
    num_open: int = 0
    most_open: int = 0
    replica: Replica = field(default_factory=lambda: Replica(ReplicaSpec("http://a")))

    def place(self, demand: Demand) -> Lease | None:
        if self.num_open >= self.number:
            return None
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        decision = Decision(self.replica, "load", 0, PROMPT_TOKENS, 0.0, {})
        return Lease(demand, decision, self.clock(), lambda _: None, self._freed)

    def has_ready(self, demand: Demand) -> bool:
        return True

    def _freed(self, _: Lease) -> None:
        self.num_open -= 1
        self.on_free()
