"""When our first token would come. Knows a replica's queue and speeds, the prompt's length and what is cached of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from router.core import Candidate, Demand, Prompt
from router.routing.policy import Unit


@dataclass(frozen=True, slots=True)
class FirstToken:
    """Seconds until our first token: the replica's expected wait + our uncached prompt tokens / its prefill speed.

    Whole blocks inside the chat template's shared part count as held by every replica: they are no reason to prefer
    one. A learned speed within `speed_noise` (a ratio) of the candidates' median counts as the median for our own
    tokens: noise is no reason either. No match known -> all but the template is to be computed; no speed learned ->
    `Replica`'s default; no load report -> what we ourselves sent it is all there is.
    """

    speed_noise: float = 0.25
    unit: ClassVar[Unit] = Unit.SECONDS

    def __post_init__(self) -> None:
        if self.speed_noise < 0.0:
            raise ValueError("speed_noise must not be negative")

    def score(self, demand: Demand, candidates: Sequence[Candidate]) -> list[float]:
        shared, num_tokens = _shared_tokens(demand.prompt), demand.prompt.num_tokens
        speeds = self._levelled([each.replica.prefill_tokens_per_s for each in candidates])
        costs = []
        for each, speed in zip(candidates, speeds, strict=True):
            matched = each.matched_tokens
            own_tokens = num_tokens - (matched if matched > shared else shared)
            costs.append(each.replica.expected_wait_s + own_tokens / speed)
        return costs

    def _levelled(self, speeds: list[float]) -> list[float]:
        if speeds.count(speeds[0]) == len(speeds):
            return speeds
        middle = sorted(speeds)[len(speeds) // 2]
        most = self.speed_noise * middle
        return [middle if abs(speed - middle) <= most else speed for speed in speeds]


def _shared_tokens(prompt: Prompt) -> int:
    """Template tokens that can be reused: engines reuse whole blocks, and compute at least the last token."""
    whole = prompt.num_template_tokens - prompt.num_template_tokens % prompt.block_size
    return max(0, min(whole, prompt.num_tokens - 1))
