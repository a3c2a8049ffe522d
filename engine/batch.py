"""What one step computes: chunks of sequences.

Knows sequences, and what must be done to memory before the step. Must not know why a batch is as it is (scheduler).
"""

from collections.abc import Sequence as List
from dataclasses import dataclass

from msgspec import Struct

from engine.adapters import Placement
from engine.prefixes import Copy
from engine.sequence import Sequence


class Chunk(Struct, frozen=True, gc=False):
    """Compute the KV of `num_tokens` tokens from `start`; sample behind them if they are the last known, and behind
    each of the guessed ones in `draft`, which is computed after them."""

    sequence: Sequence
    start: int
    num_tokens: int
    draft: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        return self.start + self.num_tokens

    @property
    def samples(self) -> bool:
        return self.ends and self.sequence.request.pooling is None

    @property
    def ends(self) -> bool:
        """Nothing known is left to compute behind it."""
        return self.end == len(self.sequence.tokens)

    @property
    def num_rows(self) -> int:
        """Of how many of its last tokens the logits are needed."""
        if self.sequence.is_telling_prompt:
            return self.num_tokens
        return 1 + len(self.draft) if self.samples else 0

    @property
    def width(self) -> int:
        """How many tokens are computed."""
        return self.num_tokens + len(self.draft)

    @property
    def token_ids(self) -> List[int]:
        """Of what is computed."""
        return [*self.sequence.tokens[self.start : self.end], *self.draft]


@dataclass(frozen=True, slots=True)
class Batch:
    """The chunks of one step, decodes first. Before them: `copies` between the tiers, then adapters into slots."""

    chunks: tuple[Chunk, ...]
    copies: tuple[Copy, ...] = ()
    placements: tuple[Placement, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(chunk.width for chunk in self.chunks)
