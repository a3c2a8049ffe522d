"""How many requests and tokens a pool's replicas take together: what we allow each, and less where one has shown that
it has more than it can do. Knows replicas and their reports; knows no queue.

An engine says that it is full by keeping requests waiting. Its limit is then what it runs and a little more, so that it
never idles; the limit rises again while it keeps nobody waiting. Its limit in tokens is its KV cache and as much more.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from router.core import Load, Replica, ReplicaState

# Reports in a row that show a queue before it is believed.
ENOUGH_REPORTS = 2
SPARE_SHARE, RISE_SHARE = 0.25, 0.125


@dataclass(eq=False, slots=True)
class _Limit:
    """One replica's: None while it has never been full."""

    most: int | None = None
    num_full: int = 0
    seen_at: float = -1.0

    def learn(self, load: Load, in_flight: int) -> None:
        self.seen_at = load.at
        is_full = load.waiting >= max(2, load.running // 10) and load.running > 0
        self.num_full = self.num_full + 1 if is_full else 0
        if self.num_full >= ENOUGH_REPORTS:
            self.most = load.running + max(2, int(load.running * SPARE_SHARE))
        elif self.most is not None and load.waiting == 0 and in_flight >= self.most:
            self.most += max(1, int(self.most * RISE_SHARE))


@dataclass(frozen=True, slots=True)
class Room:
    """What a pool takes at once. `tokens` of prompts and answers, None where not every replica has said how many."""

    requests: int = 0
    tokens: int | None = None


@dataclass(eq=False, slots=True)
class Capacity:
    """`max_in_flight` is what one replica may hold at most."""

    max_in_flight: int
    _limits: dict[str, _Limit] = field(default_factory=dict, init=False)

    def of(self, model: str, replicas: Iterable[Replica]) -> Room:
        """Of those that are ready and serve the model."""
        num_requests, num_tokens, is_known = 0, 0, True
        for replica in replicas:
            if replica.state is ReplicaState.READY and replica.pool is not None and replica.pool.model == model:
                num_requests += self._limit(replica)
                num_tokens += replica.kv_capacity_tokens or 0
                is_known = is_known and replica.kv_capacity_tokens is not None
        return Room(num_requests, int(num_tokens * (1.0 + SPARE_SHARE)) if is_known and num_tokens else None)

    def forget(self, replica_id: str) -> None:
        self._limits.pop(replica_id, None)

    def _limit(self, replica: Replica) -> int:
        limit = self._limits.get(replica.id)
        if limit is None:
            limit = self._limits[replica.id] = _Limit()
        load = replica.load
        if load is not None and load.at > limit.seen_at:
            limit.learn(load, replica.in_flight + replica.sibling_in_flight)
        return self.max_in_flight if limit.most is None else min(limit.most, self.max_in_flight)

    def __repr__(self) -> str:
        known = {id: limit.most for id, limit in self._limits.items() if limit.most is not None}
        return f"<Capacity {self.max_in_flight} a replica, but {known}>"
