"""Mooncake's Conductor, where KV is not copied between replicas. Knows queued and own prefill times."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from router.core import Candidate, Demand
from router.routing.policy import Unit


@dataclass(frozen=True, slots=True)
class QueuedPrefill:
    """Seconds: the prefill times of all that is queued there + our own uncached prefill. Nothing of decoding."""

    unit: ClassVar[Unit] = Unit.SECONDS

    def score(self, demand: Demand, candidates: Sequence[Candidate]) -> list[float]:
        num_tokens = demand.prompt.num_tokens
        return [
            each.replica.queued_prefill_s + each.replica.step.prefill_s(num_tokens - each.matched_tokens, num_tokens)
            for each in candidates
        ]
