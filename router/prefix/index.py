"""Prefix index: which replica holds which KV blocks. Knows block hashes and replica ids; nothing of tokens or time.

A tree of runs. A run is a row of blocks that the same replicas hold, and that no other chain branches off inside; a
dict leads from each block to its run. A block hash is chained, so it stands for all blocks before it: the deepest known
block of a chain is found by bisection, and who holds what of it is read off the few runs from there to the root.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from router.prefix.bits import ReplicaBits

# As traced: 30 to 60 bytes of dict table, 36 of key, 8 in the run. The table that a growing dict copies itself into is
# counted, the one that it leaves is not.
BLOCK_BYTES = 168
RUN_BYTES = 500
# Runs freed of the bits of removed replicas with each insert.
TIDIED_PER_INSERT = 64


class _Run(msgspec.Struct, eq=False, gc=False):
    """Blocks in a row, `start` blocks after the root, and who holds them: a bit for each replica. What holds a run
    holds its parent."""

    blocks: "array[int]"
    start: int
    parent: "_Run | None"
    holders: int
    num_children: int = 0

    @property
    def end(self) -> int:
        return self.start + len(self.blocks)

    def has(self, block: int, depth: int) -> bool:
        at = depth - self.start
        return 0 <= at < len(self.blocks) and self.blocks[at] == block


@dataclass(eq=False, slots=True)
class BlockIndex:
    """Implements `ports.PrefixIndex` in at most `max_bytes`. All calls are synchronous and for one thread.

    Raises ValueError where not even one block would fit.
    """

    max_bytes: int
    _runs: dict[int, _Run] = field(default_factory=dict)
    # Least recently used first. A run is used after those behind it, so the first one is always a leaf.
    _by_use: "OrderedDict[_Run, None]" = field(default_factory=OrderedDict)
    _replicas: ReplicaBits = field(default_factory=ReplicaBits)
    _pass: Iterator[None] | None = None

    def __post_init__(self) -> None:
        if self.max_bytes < RUN_BYTES + BLOCK_BYTES:
            raise ValueError(f"max_bytes must be at least {RUN_BYTES + BLOCK_BYTES}, not {self.max_bytes}")

    @property
    def total_blocks(self) -> int:
        """Blocks in memory, those of removed replicas included until they are tidied away."""
        return len(self._runs)

    @property
    def num_bytes(self) -> int:
        """Bytes that the index is reckoned at; never above `max_bytes` after an insert."""
        return len(self._runs) * BLOCK_BYTES + len(self._by_use) * RUN_BYTES

    def match(self, block_hashes: Sequence[int]) -> Mapping[str, int]:
        """Leading blocks held, by replica id; replicas that hold none are absent."""
        depths: dict[str, int] = {}
        run, depth = self._deepest(block_hashes)
        missing = self._replicas.live
        while run is not None:
            if found := run.holders & missing:
                depths.update(dict.fromkeys(self._replicas.names(found), depth))
                missing ^= found
            depth = run.start
            run = run.parent
        return depths

    def insert(self, replica_id: str, block_hashes: Sequence[int]) -> None:
        """This replica now holds this chain, given from its first block on."""
        bit = self._replicas.bit(replica_id)
        run, num_known = self._deepest(block_hashes)
        is_whole = num_known == len(block_hashes)
        if run is not None and num_known < run.end and not (is_whole and run.holders & bit):
            run = self._split(run, num_known)
        if not is_whole:
            run = self._grow(run, bit, block_hashes[num_known:])
        self._use(run, bit)
        if self._pass is not None or self._replicas.retired:
            self._tidy()
        while (excess_bytes := self.num_bytes - self.max_bytes) > 0:
            self._shorten(next(iter(self._by_use)), -(-excess_bytes // BLOCK_BYTES))

    def remove(self, replica_id: str) -> None:
        """Forget all that this replica held, at once; its traces are tidied away during later inserts."""
        self._replicas.retire(replica_id)

    def num_blocks(self, replica_id: str) -> int:
        return self._replicas.num_blocks(replica_id)

    def _deepest(self, block_hashes: Sequence[int]) -> tuple[_Run | None, int]:
        """The run of the deepest known block, and how many blocks lead there; None and 0 where none is known."""
        runs, found = self._runs, None
        low, high = 0, len(block_hashes)
        middle = high - 1  # The whole chain first: most often it is known.
        while low < high:
            block = block_hashes[middle]
            run = runs.get(block)
            # A list that is no chain may have a known block in another place.
            if run is not None and run.has(block, middle):
                found, low = run, middle + 1
            else:
                high = middle
            middle = (low + high) // 2
        return found, low

    def _split(self, run: _Run, num_blocks: int) -> _Run:
        """Make two runs of one where `num_blocks` lead from the root. Returns the first, which is the new one: so
        those that branch off behind stay as they are."""
        head = _Run(run.blocks[: num_blocks - run.start], run.start, run.parent, run.holders & self._replicas.live, 1)
        del run.blocks[: len(head.blocks)]
        run.start, run.parent = num_blocks, head
        self._runs.update(dict.fromkeys(head.blocks, head))
        self._by_use[head] = None
        return head

    def _grow(self, run: _Run | None, bit: int, blocks: Sequence[int]) -> _Run | None:
        """Put new blocks behind a run: into it, where nothing else is behind it and no one else holds it."""
        parent = run
        if run is None or run.num_children or run.holders != bit:
            run = _Run(array("Q"), 0 if run is None else run.end, run, bit)
        fresh = dict.fromkeys(blocks, run)
        if len(fresh) < len(blocks) or not self._runs.keys().isdisjoint(fresh):
            fresh = dict.fromkeys(self._unknown(blocks), run)
            if not fresh:
                return parent
        if run is not parent:
            self._by_use[run] = None
            if parent is not None:
                parent.num_children += 1
        run.blocks.extend(array("Q", fresh))
        self._runs.update(fresh)
        self._replicas.gain(bit, len(fresh))
        return run

    def _unknown(self, blocks: Sequence[int]) -> list[int]:
        """Up to one that is in memory already or comes twice: what no chain has, and this list is no chain."""
        leading: dict[int, None] = {}
        for block in blocks:
            if block in self._runs or block in leading:
                break
            leading[block] = None
        return list(leading)

    def _use(self, run: _Run | None, bit: int) -> None:
        """The replica of this bit holds the run and all before it, and they were used now."""
        while run is not None:
            if not run.holders & bit:
                run.holders |= bit
                self._replicas.gain(bit, len(run.blocks))
            self._by_use.move_to_end(run)
            run = run.parent

    def _shorten(self, run: _Run, num_blocks: int) -> None:
        """Take at most so many blocks from the end of a leaf."""
        gone = run.blocks[-num_blocks:]
        del run.blocks[-num_blocks:]
        for block in gone:
            del self._runs[block]
        self._replicas.lose(run.holders, len(gone))
        if not run.blocks:
            del self._by_use[run]
            if run.parent is not None:
                run.parent.num_children -= 1

    def _tidy(self) -> None:
        """Go on with a pass over all runs, or begin one."""
        if self._pass is None:
            self._pass = self._tidying(self._replicas.take_retired())
        if sum(1 for _ in islice(self._pass, TIDIED_PER_INSERT)) < TIDIED_PER_INSERT:
            self._pass = None

    def _tidying(self, dead: int) -> Iterator[None]:
        """Clears the bits `dead` and drops what no one holds any more, one run a step; then frees the bits."""
        # Leaves come first, and what is added meanwhile has no dead bits.
        for run in list(self._by_use):
            run.holders &= ~dead
            if not run.holders and run.blocks:
                self._shorten(run, len(run.blocks))
            yield
        self._replicas.recycle(dead)

    def __repr__(self) -> str:
        return f"<BlockIndex {len(self._runs)} blocks in {len(self._by_use)} runs, {self._replicas!r}>"
