"""Our own prefill at a replica. Knows the prompt's length, what is cached of it and prefill speeds; not the queue."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import ClassVar

from router.core import Candidate, Demand, Prompt
from router.routing.policy import Unit


@dataclass(frozen=True, slots=True)
class Prefill:
    """Seconds to compute our uncached prompt tokens: (prompt - matched) / prefill speed.

    Whole blocks inside the chat template's shared part count as held by every replica: they are no reason to prefer
    one. A learned speed within `speed_noise` (a ratio) of the candidates' median counts as the median: noise is no
    reason either. No match known -> all but the template is to be computed; no speed learned -> `Replica`'s default.
    """

    speed_noise: float = 0.25
    unit: ClassVar[Unit] = Unit.SECONDS

    def __post_init__(self) -> None:
        if self.speed_noise < 0.0:
            raise ValueError("speed_noise must not be negative")

    def score(self, demand: Demand, candidates: Sequence[Candidate]) -> list[float]:
        shared = _shared_tokens(demand.prompt)
        middle = median(candidate.replica.prefill_tokens_per_s for candidate in candidates)
        return [
            (demand.prompt.num_tokens - max(candidate.matched_tokens, shared))
            / self._levelled(candidate.replica.prefill_tokens_per_s, middle)
            for candidate in candidates
        ]

    def _levelled(self, tokens_per_s: float, middle: float) -> float:
        return middle if abs(tokens_per_s - middle) <= self.speed_noise * middle else tokens_per_s


def _shared_tokens(prompt: Prompt) -> int:
    """Template tokens that can be reused: engines reuse whole blocks, and compute at least the last token."""
    whole = prompt.num_template_tokens - prompt.num_template_tokens % prompt.block_size
    return max(0, min(whole, prompt.num_tokens - 1))
