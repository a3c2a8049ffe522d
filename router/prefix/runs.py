"""Runs: what the prefix index is made of. Knows blocks in a row and bits; nothing of trees, use or replicas."""

from array import array

import msgspec


class Run(msgspec.Struct, eq=False, gc=False):
    """Blocks in a row, `start` blocks after the root, and who holds them: a bit for each replica.

    `holders` holds it as far as we can use it: what holds a run holds its parent. `told` and `hosted` are what replicas
    said of their device and host memory; where a replica lost a block before, these are facts that lead nowhere.
    A holder of which neither is told is a guess: we sent it there.
    """

    blocks: "array[int]"
    start: int
    parent: "Run | None"
    holders: int
    told: int = 0
    hosted: int = 0

    @property
    def end(self) -> int:
        return self.start + len(self.blocks)

    @property
    def facts(self) -> int:
        return self.told | self.hosted

    def has(self, block: int, depth: int) -> bool:
        at = depth - self.start
        return 0 <= at < len(self.blocks) and self.blocks[at] == block

    def place(self, block: int) -> int:
        """How many blocks lead to one of this run, from the root."""
        last = len(self.blocks) - 1
        return self.start + (last if self.blocks[last] == block else self.blocks.index(block))

    def is_held_like(self, other: "Run", except_for: int = 0) -> bool:
        """By the same replicas in the same memory, but for these bits, which the other has and this one has not."""
        return (
            self.holders == other.holders & ~except_for
            and self.told == other.told & ~except_for
            and self.hosted == other.hosted & ~except_for
        )
