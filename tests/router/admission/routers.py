"""Routers without engines, which take their turns at a real Redis: a grant is a place used until a test ends it."""

import itertools
from dataclasses import dataclass, field
from typing import Any

from router.admission.bands import BandTerms
from router.admission.capacity import Room
from router.admission.ration import KEYS, TURN
from router.admission.turns import Turns
from router.admission.waiters import Waiter, due_of, standing_of
from router.store import names
from tests.router.nouns import make_demand

_numbers = itertools.count()
# Longer than any test may be held up.
LONG_LEASE_MS = 600_000


@dataclass(eq=False)
class Routers:
    """All of one pool. Each answer is taken in at once."""

    client: Any
    capacity: int = 8
    tokens: int | None = None
    terms: BandTerms = field(default_factory=lambda: BandTerms(min_shares=(0.0, 0.0, 0.0, 0.0)))
    turns: list[Turns] = field(default_factory=list)
    waiting: dict[Waiter[Any], Turns] = field(default_factory=dict)
    prices: dict[Waiter[Any], int] = field(default_factory=dict)
    running: dict[Turns, list[int]] = field(default_factory=dict)
    granted: list[str] = field(default_factory=list)
    model: str = field(default_factory=lambda: f"m{next(_numbers)}")

    def add(self, num_routers: int = 1) -> list[Turns]:
        added = [Turns(f"r{len(self.turns) + n}", self.terms) for n in range(num_routers)]
        self.turns += added
        for turns in added:
            turns.rejoin()
            self.turn(turns)
        return added

    @property
    def room(self) -> Room:
        return Room(self.capacity, self.tokens)

    def turn(self, turns: Turns, *, is_lost: bool = False, now: float = 0.0) -> None:
        answer = self.ask(turns, now)
        if is_lost:
            turns.lose()
            turns.rejoin()
            return
        for waiter in turns.apply(answer, 0.0, 0.0):
            turns.leave(waiter)
            if waiter in self.waiting:
                del self.waiting[waiter]
                waiter.has_left = True
                self.start(turns, self.prices[waiter])
                self.granted.append(waiter.demand.request.id)

    def ask(self, turns: Turns, now: float = 0.0) -> Any:
        prefix = names.pool(self.model)
        keys = [*(prefix + name for name in KEYS), prefix]
        return self.client.eval(TURN.text, len(keys), *keys, *turns.compose(now, self.room))

    def start(self, turns: Turns, num_tokens: int) -> None:
        turns.take(num_tokens)
        self.running.setdefault(turns, []).append(num_tokens)

    def end_all(self, turns: Turns) -> None:
        while turns.used:
            turns.give(self.running[turns].pop())

    def all_turn(self, times: int = 2) -> None:
        for _ in range(times):
            for turns in self.turns:
                self.turn(turns)

    def join(self, turns: Turns, id: str, tokens: float = 100.0, **fields: Any) -> Waiter[Any]:
        demand = make_demand(id, **fields)
        waiter: Waiter[Any] = Waiter(demand, None, standing_of(demand), 0.0, due_of(demand), next(_numbers))
        self.waiting[waiter], self.prices[waiter] = turns, round(tokens)
        turns.join(waiter, tokens)
        return waiter

    @property
    def num_used(self) -> int:
        return sum(turns.used for turns in self.turns)

    def row(self, turns: Turns) -> str:
        return str((self.client.hget(names.pool(self.model) + "routers", turns.router) or b"").decode())

    def age(self, turns: Turns, by_ms: int) -> None:
        """As if it had not been heard of for so long."""
        epoch, held, seen, *rest = self.row(turns).split(",")
        aged = ",".join([epoch, held, str(int(seen) - by_ms), *rest])
        self.client.hset(names.pool(self.model) + "routers", turns.router, aged)
