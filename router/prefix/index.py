"""Prefix index: which replica holds which KV blocks. Knows block hashes and replica ids; nothing of tokens or time.

Who holds what of a chain is read off the few runs of blocks from its deepest known block to the root (`tree.py`).
Replicas lose blocks in any order, and a block is of use only with all before it: so that bisection stays right, a run's
`holders` always hold its parent, too. What a replica says that it has behind a block that it lost is kept aside, and
counts again when that block comes back.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from router.prefix.bits import ReplicaBits
from router.prefix.recency import Recency
from router.prefix.runs import Run
from router.prefix.tree import BLOCK_BYTES, RUN_BYTES, RunTree

# Runs freed of the bits of removed replicas with each insert.
TIDIED_PER_INSERT = 64

Fact = tuple[int | None, bytes, bool]
"""The block before, packed blocks of 64 bits, and whether they are in host memory."""


@dataclass(eq=False, slots=True)
class BlockIndex:
    """Implements `ports.PrefixIndex` in at most `max_bytes`. All calls are synchronous and for one thread.

    `insert` guesses from what was sent to a replica, and `retract` takes a guess back; `store` and `drop` are what a
    replica says. Raises ValueError where not even one block would fit.
    """

    max_bytes: int
    _replicas: ReplicaBits = field(default_factory=ReplicaBits)
    _recency: Recency = field(default_factory=Recency)
    _tree: RunTree = field(init=False)
    # Bits of replicas that may have facts which lead nowhere.
    _stranded: int = 0
    _has_host: bool = False
    _pass: Iterator[None] | None = None

    def __post_init__(self) -> None:
        self._tree = RunTree(self._replicas, self._recency)
        if self.max_bytes < RUN_BYTES + BLOCK_BYTES:
            raise ValueError(f"max_bytes must be at least {RUN_BYTES + BLOCK_BYTES}, not {self.max_bytes}")

    @property
    def total_blocks(self) -> int:
        """Blocks in memory, those of removed replicas included until they are tidied away."""
        return len(self._tree.runs)

    @property
    def num_bytes(self) -> int:
        """Bytes that the index is reckoned at; never above `max_bytes` after an insert."""
        return self._tree.num_bytes

    def match(self, block_hashes: Sequence[int]) -> Mapping[str, int]:
        """Leading blocks held, by replica id; replicas that hold none are absent."""
        depths: dict[str, int] = {}
        run, depth = self._tree.deepest(block_hashes)
        live = missing = self._replicas.live
        while run is not None:
            if run.holders & missing:
                # All its holders, for their names are at hand; who holds more keeps its place and its depth.
                shallower = dict.fromkeys(self._replicas.names(run.holders & live), depth)
                depths = {**depths, **shallower, **depths} if depths else shallower
                missing &= ~run.holders
            depth = run.start
            run = run.parent
        return depths

    def match_device(self, block_hashes: Sequence[int], matches: Mapping[str, int]) -> Mapping[str, int]:
        """Of the `matches` of this chain, the leading blocks that need not be fetched from host memory."""
        if not self._has_host:
            return matches
        run, depth = self._tree.deepest(block_hashes)
        path: list[tuple[Run, int]] = []
        while run is not None:
            path.append((run, depth))
            depth, run = run.start, run.parent
        depths: dict[str, int] = {}
        alive = self._replicas.live
        for run, depth in reversed(path):
            alive &= run.holders & (run.told | ~run.hosted)
            depths.update(dict.fromkeys(self._replicas.names(alive), depth))
        return depths

    def insert(self, replica_id: str, block_hashes: Sequence[int]) -> None:
        """A guess: this replica will hold this chain, given from its first block on, as it was sent there."""
        bit, tree = self._replicas.bit(replica_id), self._tree
        run, num_known = tree.deepest(block_hashes)
        is_whole = num_known == len(block_hashes)
        if run is not None and num_known < run.end and not (is_whole and run.holders & bit):
            run = tree.split(run, num_known)
        if not is_whole:
            run = self._grow(run, bit, 0, 0, block_hashes[num_known:])
        self._use(run, bit)
        if bit & self._recency.modelled:
            self._fit(bit)
        self._keep_in_bounds()

    def store(self, replica_id: str, parent: int | None, block_hashes: Sequence[int], *, is_host: bool = False) -> None:
        """The replica says that it holds these blocks, which follow `parent`; None: they begin a prompt.

        What follows a block that is not known here is left out: it could not be found from its beginning.
        """
        before, offset = None, 0
        if parent is not None:
            before = self._tree.runs.get(parent)
            if before is None:
                return
            offset = before.place(parent) + 1
        bit = self._replicas.bit(replica_id)
        told, hosted = (0, bit) if is_host else (bit, 0)
        self._has_host |= is_host
        run, num_known = self._tree.deepest(block_hashes, offset)
        end = offset + num_known
        run = self._confirm(run, offset, end, told, hosted) if run is not None else before
        if num_known < len(block_hashes):
            if run is not None and end < run.end:
                run = self._tree.split(run, end)
            run = self._grow(run, bit, told, hosted, block_hashes[num_known:])
        self._tree.touch(run)
        self._keep_in_bounds()

    def drop(self, replica_id: str, block_hashes: Sequence[int], *, is_host: bool = False) -> None:
        """The replica says that it holds these blocks no more, in any order."""
        bit, runs = self._replicas.known_bit(replica_id), self._tree.runs
        for block in block_hashes:
            run = runs.get(block)
            if run is not None and (run.hosted if is_host else run.told) & bit:
                self._drop_one(run, run.place(block), bit, is_host)
        self._keep_in_bounds()

    def move(self, replica_id: str, block: int, *, to_host: bool) -> None:
        """The replica says that it holds this block in the other memory now."""
        bit, run = self._replicas.known_bit(replica_id), self._tree.runs.get(block)
        if run is None or not run.facts & bit:
            return
        run = self._isolate(run, run.place(block))
        run.told, run.hosted = (run.told & ~bit, run.hosted | bit) if to_host else (run.told | bit, run.hosted & ~bit)
        self._has_host |= to_host
        self._keep_in_bounds()

    def retract(self, replica_id: str, block_hashes: Sequence[int], num_kept: int = 0) -> None:
        """Take back what was guessed of this chain behind its first `num_kept` blocks: it did not come true."""
        bit, top = self._replicas.known_bit(replica_id), None
        run, _ = self._tree.deepest(block_hashes)
        while run is not None and run.end > num_kept and not run.facts & bit:
            if run.holders & bit:
                top = run
            run = run.parent
        if top is not None:
            if top.start < num_kept:
                self._cut(top, num_kept)
            self._lose(top, bit)
            self._keep_in_bounds()

    def remove(self, replica_id: str) -> None:
        """Forget all that this replica held, at once; its traces are tidied away during later inserts."""
        bit = self._replicas.known_bit(replica_id)
        self._recency.forget(bit)
        self._stranded &= ~bit
        self._replicas.retire(replica_id)

    def limit(self, replica_id: str, capacity: int | None) -> None:
        """Model this replica's cache as one of so many blocks; None: it says itself what it evicts."""
        bit = self._replicas.bit(replica_id)
        is_new = capacity is not None and not bit & self._recency.modelled
        self._recency.limit(bit, capacity)
        if is_new and self._replicas.count(bit):
            for run in self._tree.by_use:
                if run.holders & bit:
                    self._recency.use(bit, run)
        if capacity is not None:
            self._fit(bit)
        self._keep_in_bounds()

    def capacity(self, replica_id: str) -> int | None:
        """Blocks that the replica is modelled with; None where it is not."""
        return self._recency.capacity(self._replicas.known_bit(replica_id))

    def is_told(self, replica_id: str, block: int) -> bool:
        """Has the replica said that it holds this block?"""
        run = self._tree.runs.get(block)
        return run is not None and run.facts & self._replicas.known_bit(replica_id) != 0

    def facts(self, replica_id: str) -> Iterator[Fact]:
        """All that the replica has said, parents first: what `store` would take. Not while the index changes."""
        bit = self._replicas.known_bit(replica_id)
        for run in reversed(self._tree.by_use):
            before = run.parent.blocks[-1] if run.parent is not None else None
            if run.told & bit:
                yield before, run.blocks.tobytes(), False
            if run.hosted & bit:
                yield before, run.blocks.tobytes(), True

    def chains(self, replica_id: str) -> "Iterator[array[int]]":
        """The prompts that it holds, each from its first block to the last that it holds of it: what `insert` would
        take. Not while the index changes."""
        bit, tree = self._replicas.known_bit(replica_id), self._tree
        for leaf in tree.by_use:
            if leaf.holders & bit and not any(child.holders & bit for child in tree.children(leaf)):
                blocks, run = leaf.blocks, leaf.parent
                while run is not None:
                    blocks, run = run.blocks + blocks, run.parent
                yield blocks

    def num_blocks(self, replica_id: str) -> int:
        return self._replicas.num_blocks(replica_id)

    # what comes

    def _grow(self, run: Run | None, bit: int, told: int, hosted: int, blocks: Sequence[int]) -> Run | None:
        """Put new blocks behind a run: into it, where nothing else is behind it and the same hold it."""
        # A guess fills what is before it, too; a fact may have nothing before it.
        is_reached = run is None or run.holders & bit or not (told or hosted)
        new = Run(array("Q"), 0 if run is None else run.end, run, bit if is_reached else 0, told, hosted)
        if run is not None and self._tree.is_leaf(run) and new.is_held_like(run):
            new = run
        num_grown = self._tree.grow(new, blocks)
        if is_reached:
            self._replicas.gain(bit, num_grown)
        else:
            self._stranded |= bit
        return new if num_grown else run

    def _use(self, run: Run | None, bit: int) -> None:
        """The replica of this bit holds the run and all before it, and they were used now."""
        by_use, is_modelled = self._tree.by_use, bit & self._recency.modelled
        gained = []
        while run is not None:
            if not run.holders & bit:
                run.holders |= bit
                self._replicas.gain(bit, len(run.blocks))
                gained.append(run)
            by_use.move_to_end(run)
            if is_modelled:
                self._recency.use(bit, run)
            run = run.parent
        if self._stranded & bit:
            for each in gained:
                self._reach_behind(each, bit)

    def _confirm(self, run: Run, offset: int, end: int, told: int, hosted: int) -> Run:
        """Set what is told of the blocks from `offset` to `end`, of which `run` has the last."""
        path: list[Run] = []
        each: Run | None = run
        while each is not None and each.end > offset:
            if told & ~each.told or hosted & ~each.hosted:
                if each is run and end < run.end:
                    each = run = self._tree.split(run, end)
                if each.start < offset:
                    self._tree.split(each, offset)
                path.append(each)
            each = each.parent
        for each in reversed(path):
            each.told |= told
            each.hosted |= hosted
            self._reach(each, told | hosted)
        return self._tree.absorb(run) if path else run

    def _reach(self, run: Run, bit: int) -> None:
        """A fact came: of use where all before it is held, and then so are the facts that waited behind it."""
        if run.holders & bit:
            return
        if run.parent is not None and not run.parent.holders & bit:
            self._stranded |= bit
            return
        run.holders |= bit
        self._replicas.gain(bit, len(run.blocks))
        if self._stranded & bit:
            self._reach_behind(run, bit)

    def _reach_behind(self, run: Run, bit: int) -> None:
        waiting = [run]
        while waiting:
            for child in self._tree.children(waiting.pop()):
                if child.facts & bit and not child.holders & bit:
                    child.holders |= bit
                    self._replicas.gain(bit, len(child.blocks))
                    waiting.append(child)

    # what goes

    def _drop_one(self, run: Run, depth: int, bit: int, is_host: bool) -> None:
        if depth + 1 == run.end and not is_host and self._drop_last(run, bit):
            return
        run = self._isolate(run, depth)
        if is_host:
            run.hosted &= ~bit
        else:
            run.told &= ~bit
        if not run.facts & bit:
            self._lose(run, bit)

    def _isolate(self, run: Run, depth: int) -> Run:
        """A run of only this block."""
        if depth + 1 < run.end:
            run = self._cut(run, depth + 1)
        if run.start < depth:
            self._cut(run, depth)
        return run

    def _drop_last(self, run: Run, bit: int) -> bool:
        """As engines free tails first, most often the end of a run moves and no run is made for one block."""
        tree = self._tree
        children = tree.children(run)
        if not children and run.holders & ~bit == 0 and run.told == bit and not run.hosted:
            tree.shorten(run, 1)
            return True
        only = next(iter(children)) if len(children) == 1 else None
        if only is None or len(run.blocks) == 1 or run.hosted & bit or not only.is_held_like(run, except_for=bit):
            return False
        tree.hand_down(run, only)
        if run.holders & bit:
            self._replicas.lose(bit, 1)
        return True

    def _lose(self, run: Run, bit: int) -> None:
        """The replica holds this run no more; facts of its own behind it lead nowhere then."""
        found, lost = [run], [run]
        while found:
            run = found.pop()
            if run.holders & bit:
                run.holders &= ~bit
                self._replicas.lose(bit, len(run.blocks))
                self._recency.drop(run, bit)
                if run.facts & bit:
                    self._stranded |= bit
                found += self._tree.children(run)
                lost.append(run)
        for run in reversed(lost):
            self._tree.discard(run)

    def _cut(self, run: Run, num_blocks: int) -> Run:
        """A split that is no use of the chain, but may only leave leaves first in the order of use."""
        head = self._tree.split(run, num_blocks)
        self._tree.touch(head)
        return head

    def _fit(self, bit: int) -> None:
        """Forget what a modelled replica has probably evicted."""
        capacity, tree = self._recency.capacity(bit) or 0, self._tree
        while (excess := self._replicas.count(bit) - capacity) > 0 and (run := self._recency.oldest(bit)) is not None:
            is_last = not any(child.holders & bit for child in tree.children(run))
            if is_last and excess < len(run.blocks):
                self._recency.age(bit, self._cut(run, run.end - excess))
            self._lose(run, bit)

    def _keep_in_bounds(self) -> None:
        if self._pass is not None or self._replicas.retired:
            self._tidy()
        while (excess_bytes := self.num_bytes - self.max_bytes) > 0:
            self._tree.shorten(next(iter(self._tree.by_use)), -(-excess_bytes // BLOCK_BYTES))

    def _tidy(self) -> None:
        """Go on with a pass over all runs, or begin one."""
        if self._pass is None:
            self._pass = self._tidying(self._replicas.take_retired())
        if sum(1 for _ in islice(self._pass, TIDIED_PER_INSERT)) < TIDIED_PER_INSERT:
            self._pass = None

    def _tidying(self, dead: int) -> Iterator[None]:
        yield from self._tree.tidying(dead)
        self._replicas.recycle(dead)

    def __repr__(self) -> str:
        return f"<BlockIndex {self._tree!r}, {self._replicas!r}>"
