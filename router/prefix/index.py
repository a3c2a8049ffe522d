"""Prefix index: which replica holds which KV blocks. Knows block hashes and replica ids; nothing of tokens or time.

One dict maps a block hash to an integer: a bit for each replica that holds it, and below them the generation of its
last use (`uses.py`). A block that its generation already lists is not written again, so a hot prefix costs one write
per generation and not one per request; and as a chain is always used from its head on, and the oldest generation is
evicted from its end, a tail goes before its head.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from router.prefix.bits import GENERATION_MASK, ReplicaBits
from router.prefix.uses import Uses

# As traced: 30 to 60 bytes of dict table, 36 of key, and values, which runs of blocks share. The table that a growing
# dict copies itself into is counted, the one that it leaves is not.
BLOCK_BYTES = 168
USE_BYTES = 8
# A generation ends when this part of the cap was used in it: the grain of "least recently used".
GENERATIONS_PER_CAP = 16
# With more uses than this per block, most are void and are tidied away, a few with each insert.
USES_PER_BLOCK = 3
TIDIED_PER_INSERT = 256


@dataclass(eq=False, slots=True)
class BlockIndex:
    """Implements `ports.PrefixIndex` in at most `max_bytes`. All calls are synchronous and for one thread.

    Raises ValueError where not even one block would fit.
    """

    max_bytes: int
    _blocks: dict[int, int] = field(default_factory=dict)
    _replicas: ReplicaBits = field(default_factory=ReplicaBits)
    _uses: Uses = field(default_factory=Uses)
    _pass: Iterator[None] | None = None

    def __post_init__(self) -> None:
        if self.max_bytes < BLOCK_BYTES + USE_BYTES:
            raise ValueError(f"max_bytes must be at least {BLOCK_BYTES + USE_BYTES}, not {self.max_bytes}")

    @property
    def total_blocks(self) -> int:
        """Blocks in memory, those of removed replicas included until they are tidied away."""
        return len(self._blocks)

    @property
    def num_bytes(self) -> int:
        """Bytes that the index is reckoned at; never above `max_bytes` after an insert."""
        return len(self._blocks) * BLOCK_BYTES + self._uses.total * USE_BYTES

    def match(self, block_hashes: Sequence[int]) -> Mapping[str, int]:
        """Leading blocks held, by replica id; replicas that hold none are absent."""
        depths: dict[str, int] = {}
        holders, depth, seen = self._replicas.live, 0, 0
        for value in map(self._blocks.get, block_hashes):
            if value is not seen:
                if value is None:
                    break
                seen = value
                if (still := holders & value) != holders:
                    if depth:
                        depths.update(dict.fromkeys(self._replicas.names(holders ^ still), depth))
                    if not still:
                        return depths
                    holders = still
            depth += 1
        if depth:
            depths.update(dict.fromkeys(self._replicas.names(holders), depth))
        return depths

    def insert(self, replica_id: str, block_hashes: Sequence[int]) -> None:
        """This replica now holds this chain, given from its first block on. Only what changes is written."""
        self._uses.begin_if_full(self.max_bytes // (BLOCK_BYTES + USE_BYTES) // GENERATIONS_PER_CAP)
        bit = self._replicas.bit(replica_id)
        used = self._mark(bit, block_hashes)
        self._uses.record(used)
        # Tidying outruns what is recorded, or it would never come to its end.
        self._tidy(TIDIED_PER_INSERT + 2 * USES_PER_BLOCK * len(used))
        self._evict()

    def remove(self, replica_id: str) -> None:
        """Forget all that this replica held, at once; its traces are tidied away during later inserts."""
        self._replicas.retire(replica_id)

    def num_blocks(self, replica_id: str) -> int:
        return self._replicas.num_blocks(replica_id)

    def _mark(self, bit: int, block_hashes: Sequence[int]) -> list[int]:
        """Set `bit` along the chain. Returns the blocks that this generation did not list yet."""
        blocks, generation, live = self._blocks, self._uses.newest, self._replicas.live
        new = bit | generation
        gained, used, seen, renewed = 0, [], 0, 0
        for block in block_hashes:
            value = blocks.get(block, 0)
            if not value:
                renewed = new
            elif value is not seen:
                renewed = value & live | new
                # Runs of equal values share one object, so that `is` knows them again.
                renewed = value if renewed == value else renewed
            seen = value
            if value is renewed:
                continue
            blocks[block] = renewed
            if not value or value & GENERATION_MASK != generation:
                used.append(block)
            gained += not value & bit
        self._replicas.gain(bit, gained)
        return used

    def _evict(self) -> None:
        while (excess_bytes := self.num_bytes - self.max_bytes) > 0:
            for block, generation in self._uses.pop_oldest(-(-excess_bytes // (BLOCK_BYTES + USE_BYTES))):
                value = self._blocks.get(block, 0)
                # Where it was used since, a later generation lists it too.
                if value and value & GENERATION_MASK == generation:
                    del self._blocks[block]
                    self._replicas.lose(value)

    def _tidy(self, num_uses: int) -> None:
        """Go on with a pass over at most `num_uses` uses, or begin one where there is something to tidy away."""
        if self._pass is None:
            if not self._replicas.retired and self._uses.total <= USES_PER_BLOCK * len(self._blocks):
                return
            self._pass = self._tidying(self._replicas.take_retired())
        if sum(1 for _ in islice(self._pass, num_uses)) < num_uses:
            self._pass = None

    def _tidying(self, dead: int) -> Iterator[None]:
        """Drops the uses that a later one made void and clears the bits `dead`, one use a step; then frees the bits."""
        blocks, seen, cleared = self._blocks, 0, 0
        # What is written from here on has no dead bits, and is listed in the generation that this begins.
        for generation in self._uses.begin():
            kept = array("Q")
            for block in self._uses.listed(generation):
                value = blocks.get(block, 0)
                if value and value & GENERATION_MASK == generation:
                    if value is not seen:
                        seen, cleared = value, value & ~dead
                    if cleared > GENERATION_MASK:
                        kept.append(block)
                        blocks[block] = cleared
                    else:
                        del blocks[block]
                yield
            self._uses.replace(generation, kept)
        self._replicas.recycle(dead)

    def __repr__(self) -> str:
        return f"<BlockIndex {len(self._blocks)} blocks, {self._replicas!r}>"
