"""How much of the prompt was sent to a replica before, as llm-d's approximate prefix scorer counts it. Knows our own
dispatches; nothing of what engines really hold."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from router.core import Candidate, Demand, Lease
from router.routing.policy import Unit

# Its blocks are at least so large, and so many of them are remembered of a replica.
MIN_BLOCK_TOKENS = 64
MAX_BLOCKS = 31_250
MAX_PROMPT_TOKENS = 131_072


@dataclass(eq=False, slots=True)
class DispatchedShare:
    """Share of the prompt's leading blocks that were sent to the replica, of the 31,250 blocks of 64 tokens (or as many
    tokens in larger blocks) most recently used there; only the first 131,072 tokens count. Never sent -> 0."""

    unit: ClassVar[Unit] = Unit.SHARE
    _sent: dict[str, "OrderedDict[int, None]"] = field(default_factory=dict, init=False)

    def score(self, demand: Demand, candidates: Sequence[Candidate]) -> list[float]:
        blocks = _leading(demand)
        return [self._num_sent(each.replica.id, blocks) / max(1, len(blocks)) for each in candidates]

    def placed(self, lease: Lease) -> None:
        sent = self._sent.setdefault(lease.replica.id, OrderedDict())
        for block in _leading(lease.demand):
            sent[block] = None
            sent.move_to_end(block)
        most = MAX_BLOCKS * MIN_BLOCK_TOKENS // max(MIN_BLOCK_TOKENS, lease.demand.prompt.block_size)
        while len(sent) > most:
            sent.popitem(last=False)

    def _num_sent(self, replica_id: str, blocks: Sequence[int]) -> int:
        sent = self._sent.get(replica_id)
        if not sent:
            return 0
        return next((at for at, block in enumerate(blocks) if block not in sent), len(blocks))


def _leading(demand: Demand) -> Sequence[int]:
    """The blocks that it looks at: every one, or where they are smaller than its own, the last of each of its own."""
    prompt = demand.prompt
    per_block = max(1, MIN_BLOCK_TOKENS // prompt.block_size)
    return prompt.block_hashes[per_block - 1 : MAX_PROMPT_TOKENS // prompt.block_size : per_block]
