"""Which run each block is in: a dict in shards. Knows hashes and runs; nothing of trees.

A dict that grows copies itself, which at some hundred thousand blocks stops the event loop for tens of milliseconds. A
shard of it copies itself in a fraction of one.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from router.prefix.runs import Run

# Hashes are even in all their bits.
NUM_SHARDS = 64
MASK = NUM_SHARDS - 1


@dataclass(eq=False, slots=True)
class BlockTable:
    """`shards` are read in place by who looks for many blocks: that of a block is `shards[block & MASK]`."""

    shards: list[dict[int, Run]] = field(default_factory=lambda: [{} for _ in range(NUM_SHARDS)])
    num_blocks: int = 0

    def get(self, block: int) -> Run | None:
        return self.shards[block & MASK].get(block)

    def add(self, blocks: Iterable[int], run: Run) -> int:
        """New blocks of a run, up to one that is in the table already or comes twice. Returns how many were added."""
        shards, num_added = self.shards, 0
        for block in blocks:
            shard = shards[block & MASK]
            if block in shard:
                break
            shard[block] = run
            num_added += 1
        self.num_blocks += num_added
        return num_added

    def move(self, blocks: Iterable[int], run: Run) -> None:
        """Blocks that are in it belong to another run now."""
        shards = self.shards
        for block in blocks:
            shards[block & MASK][block] = run

    def discard(self, blocks: Iterable[int]) -> None:
        """Blocks that are in it are no more."""
        shards = self.shards
        for block in blocks:
            del shards[block & MASK][block]
            self.num_blocks -= 1

    def __contains__(self, block: int) -> bool:
        return block in self.shards[block & MASK]

    def __getitem__(self, block: int) -> Run:
        return self.shards[block & MASK][block]

    def __len__(self) -> int:
        return self.num_blocks

    def __repr__(self) -> str:
        return f"<BlockTable {self.num_blocks} blocks in {NUM_SHARDS} shards>"
