"""A tree of runs: chains that begin alike share their beginning. Knows blocks, runs, and the order of their use.

A table leads from each block to its run; a chain's deepest known block is found by bisection, as a block hash stands
for all blocks before it. Knows nothing of what makes somebody hold a run.
"""

from array import array
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from router.prefix.bits import ReplicaBits
from router.prefix.recency import ENTRY_BYTES, Recency
from router.prefix.runs import Run
from router.prefix.table import MASK, BlockTable

# As traced: 30 to 60 bytes of dict table, 36 of key, 8 in the run. The table that a growing dict copies itself into is
# counted, the one that it leaves is not.
BLOCK_BYTES = 168
RUN_BYTES = 780


@dataclass(eq=False, slots=True)
class RunTree:
    """Counts of blocks in `replicas`, and the runs of modelled replicas in `recency`, follow what is done here."""

    replicas: ReplicaBits
    recency: Recency
    runs: BlockTable = field(default_factory=BlockTable)
    # Least recently used first. A run is used after those behind it, so the first one is always a leaf.
    by_use: "OrderedDict[Run, None]" = field(default_factory=OrderedDict)
    _children: "dict[Run, set[Run]]" = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        entries = self.recency.num_entries if self.recency.modelled else 0
        return self.runs.num_blocks * BLOCK_BYTES + len(self.by_use) * RUN_BYTES + entries * ENTRY_BYTES

    def deepest(self, block_hashes: Sequence[int], offset: int = 0) -> tuple[Run | None, int]:
        """The run of the deepest known block, and how many of these lead there; None and 0 where none is known.
        `offset`: how many blocks come before these."""
        shards, found = self.runs.shards, None
        low, high = 0, len(block_hashes)
        middle = high - 1  # The whole chain first: most often it is known.
        while low < high:
            block = block_hashes[middle]
            run = shards[block & MASK].get(block)
            # A list that is no chain may have a known block in another place.
            if run is not None and run.has(block, offset + middle):
                found, low = run, middle + 1
            else:
                high = middle
            middle = (low + high) // 2
        return found, low

    def children(self, run: Run) -> Collection[Run]:
        """Those that follow it."""
        return self._children.get(run, ())

    def is_leaf(self, run: Run) -> bool:
        return run not in self._children

    def touch(self, run: Run | None) -> None:
        """It and all before it were used now."""
        while run is not None:
            self.by_use.move_to_end(run)
            run = run.parent

    def grow(self, run: Run, blocks: Sequence[int]) -> int:
        """Put blocks at the end of a run, which is new if it has none. Returns how many were taken: those up to one
        that is in memory already or comes twice, as no chain has it and this list is no chain."""
        num_grown = self.runs.add(blocks, run)
        if num_grown and not run.blocks:
            self.by_use[run] = None
            self._link(run)
        run.blocks.extend(array("Q", blocks[:num_grown]))
        return num_grown

    def split(self, run: Run, num_blocks: int) -> Run:
        """Make two runs of one where `num_blocks` lead from the root. Returns the first, which is the new one: so
        those that branch off behind stay as they are. It counts as used now; whoever calls touches what is before it.
        """
        live = self.replicas.live
        blocks = run.blocks[: num_blocks - run.start]
        head = Run(blocks, run.start, run.parent, run.holders & live, run.told & live, run.hosted & live)
        del run.blocks[: len(blocks)]
        self._unlink(run)
        run.start, run.parent = num_blocks, head
        self._link(head)
        self._link(run)
        self.runs.move(blocks, head)
        self.by_use[head] = None
        if head.holders & self.recency.modelled:
            self.recency.split(head)
        return head

    def absorb(self, run: Run) -> Run:
        """Make one run of two again, where nothing sets them apart any more. Returns what the blocks are in now."""
        parent = run.parent
        if parent is None or len(self._children[parent]) > 1 or not run.is_held_like(parent):
            return run
        parent.blocks.extend(run.blocks)
        self.runs.move(run.blocks, parent)
        self._unlink(run)
        for child in self._children.pop(run, ()):
            child.parent = parent
            self._link(child)
        del self.by_use[run]
        self.recency.drop(run, run.holders)
        return parent

    def hand_down(self, run: Run, child: Run) -> None:
        """The last block of a run becomes the first of the one that follows it."""
        block = run.blocks.pop()
        child.blocks.insert(0, block)
        child.start -= 1
        self.runs.move((block,), child)

    def shorten(self, run: Run, num_blocks: int) -> None:
        """Take at most so many blocks from the end of a leaf."""
        gone = run.blocks[-num_blocks:]
        del run.blocks[-num_blocks:]
        self.runs.discard(gone)
        self.replicas.lose(run.holders, len(gone))
        if not run.blocks:
            del self.by_use[run]
            self.recency.drop(run, run.holders)
            self._unlink(run)

    def discard(self, run: Run | None) -> None:
        """Take away a leaf that nobody holds, and what before it is then one."""
        while run is not None and run.blocks and not (run.holders | run.facts) and self.is_leaf(run):
            parent = run.parent
            self.shorten(run, len(run.blocks))
            run = parent

    def tidying(self, dead: int) -> Iterator[None]:
        """Clears the bits `dead` and drops what no one holds any more, one run a step."""
        # Leaves come first, and what is added meanwhile has no dead bits.
        for run in list(self.by_use):
            run.holders &= ~dead
            run.told &= ~dead
            run.hosted &= ~dead
            self.discard(run)
            yield

    def _link(self, run: Run) -> None:
        if run.parent is not None:
            self._children.setdefault(run.parent, set()).add(run)

    def _unlink(self, run: Run) -> None:
        if run.parent is not None:
            siblings = self._children[run.parent]
            siblings.discard(run)
            if not siblings:
                del self._children[run.parent]

    def __repr__(self) -> str:
        return f"{len(self.runs)} blocks in {len(self.by_use)} runs"
