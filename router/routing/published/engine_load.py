"""What engines report of their load, as llm-d scores it. Knows the last report; nothing of our own dispatches since."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from router.core import Candidate, Demand
from router.routing.policy import Unit


@dataclass(frozen=True, slots=True)
class QueueRoom:
    """Share (longest queue - its queue) / (longest - shortest), of requests that wait in the engine; 1 where all queues
    are equal. No report -> an empty queue."""

    unit: ClassVar[Unit] = Unit.SHARE

    def score(self, demand: Demand, candidates: Sequence[Candidate]) -> list[float]:
        queues = [0 if each.replica.load is None else each.replica.load.waiting for each in candidates]
        longest, shortest = max(queues), min(queues)
        if longest == shortest:
            return [1.0] * len(queues)
        return [(longest - queue) / (longest - shortest) for queue in queues]


@dataclass(frozen=True, slots=True)
class KvRoom:
    """Share 1 - KV cache in use. No report -> 1."""

    unit: ClassVar[Unit] = Unit.SHARE

    def score(self, demand: Demand, candidates: Sequence[Candidate]) -> list[float]:
        return [1.0 if each.replica.load is None else 1.0 - each.replica.load.kv_used_ratio for each in candidates]
