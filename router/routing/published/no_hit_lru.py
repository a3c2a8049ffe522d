"""Cold prompts to whom they have not been sent for longest, as llm-d's no-hit-lru scorer. Knows our own dispatches."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from router.core import Candidate, Demand, Lease
from router.routing.policy import Unit


@dataclass(eq=False, slots=True)
class NoHitLru:
    """Where nobody holds any of the prompt: share by how long ago a replica was last sent such a cold prompt, 1 for the
    longest (or never), 0 for the last. A prompt that somebody holds -> 0.5 for all."""

    unit: ClassVar[Unit] = Unit.SHARE
    _last_cold: dict[str, int] = field(default_factory=dict, init=False)
    _num_cold: int = field(default=0, init=False)

    def score(self, demand: Demand, candidates: Sequence[Candidate]) -> list[float]:
        if any(each.matched_tokens for each in candidates):
            return [0.5] * len(candidates)
        if len(candidates) == 1:
            return [1.0]
        order = sorted(range(len(candidates)), key=lambda at: self._last_cold.get(candidates[at].replica.id, 0))
        shares = [0.0] * len(candidates)
        for rank, at in enumerate(order):
            shares[at] = 1.0 - rank / (len(candidates) - 1)
        return shares

    def placed(self, lease: Lease) -> None:
        # What the chosen one holds stands for what anybody does: a holder elsewhere is passed over by load alone.
        if lease.decision.matched_tokens == 0:
            self._num_cold += 1
            self._last_cold[lease.replica.id] = self._num_cold
