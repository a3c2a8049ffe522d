"""Dynamo's KV router. Knows uncached tokens in flight and the blocks of open requests; nothing of time."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from router.core import Candidate, Demand, Lease
from router.routing.policy import Unit
from router.routing.published.token_aware import uncached_in_flight


@dataclass(eq=False, slots=True)
class _Open:
    """A replica's open requests: how many hold each block, and how many hold a part of a block of their own."""

    holders: Counter[int] = field(default_factory=Counter)
    num_partial: int = 0

    def num_blocks_with(self, blocks: Sequence[int], has_partial: bool) -> int:
        """Distinct blocks, those of another request included."""
        return len(self.holders) + len(blocks) - self._num_held(blocks) + self.num_partial + has_partial

    def _num_held(self, blocks: Sequence[int]) -> int:
        # Requests hold whole chains, so what is held of another is a leading part.
        low, high = 0, len(blocks)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if blocks[middle] in self.holders else (low, middle)
        return low


@dataclass(eq=False, slots=True)
class DynamoBlocks:
    """Work in blocks: `overlap_weight` x (uncached tokens in flight + our own) / block size + distinct blocks of open
    requests, ours included. The prefill's part ends at the first token, the blocks' at the end of the answer."""

    overlap_weight: float = 1.0
    unit: ClassVar[Unit] = Unit.WORK
    _open: dict[str, _Open] = field(default_factory=dict, init=False)

    def score(self, demand: Demand, candidates: Sequence[Candidate]) -> list[float]:
        return [self._cost(demand, each) for each in candidates]

    def placed(self, lease: Lease) -> None:
        held, prompt = self._open.setdefault(lease.replica.id, _Open()), lease.demand.prompt
        held.holders.update(prompt.block_hashes)
        held.num_partial += _has_partial(lease.demand)
        lease.when_released(self._released)

    def _released(self, lease: Lease) -> None:
        held = self._open[lease.replica.id]
        held.num_partial -= _has_partial(lease.demand)
        for block in lease.demand.prompt.block_hashes:
            if held.holders[block] == 1:
                del held.holders[block]
            else:
                held.holders[block] -= 1

    def _cost(self, demand: Demand, candidate: Candidate) -> float:
        prompt, held = demand.prompt, self._open.get(candidate.replica.id) or _Open()
        num_uncached = uncached_in_flight(candidate) + prompt.num_tokens - candidate.matched_tokens
        num_blocks = held.num_blocks_with(prompt.block_hashes, _has_partial(demand))
        return self.overlap_weight * num_uncached / prompt.block_size + num_blocks


def _has_partial(demand: Demand) -> bool:
    return demand.prompt.num_tokens > len(demand.prompt.block_hashes) * demand.prompt.block_size
