"""The pool of KV blocks: who holds which, and which freed ones still serve a prefix, on the device or in host memory.

Knows block ids, reference counts and the prefixes that cached blocks stand for. Must not know sequences, tensors or
time: what has to move between the tiers is listed as copies, for whoever owns the bytes.

A block is free (no content worth keeping), used (held by someone) or cached (held by nobody, content kept until
the room is needed): free + used + cached == total. A block enters the cache only behind a parent that is in it,
a chain is held from its head and let go from its tail, so the least recently used block never has a child in the
cache. An evicted block goes on in the host tier, if there is one, and is loaded back when it is asked for.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator
from collections.abc import Sequence as List
from itertools import takewhile
from operator import attrgetter

from engine.host_tier import HostTier
from engine.prefixes import Change, Cleared, Copy, Medium, Prefix, Removed, Scope, Stored


class OutOfBlocks(Exception):
    """The pool cannot give as many blocks as were asked for."""


class BlockPool:
    """`records_changes`: note what comes and goes, for `take_changes`; whoever asks for it must take them."""

    __slots__ = (
        "_by_hash",
        "_cached",
        "_changes",
        "_copies",
        "_free",
        "_holders",
        "_prefixes",
        "block_size",
        "host",
        "num_blocks",
        "num_clears",
        "records_changes",
    )

    def __init__(
        self, num_blocks: int, block_size: int, num_host_blocks: int = 0, *, records_changes: bool = False
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.host = HostTier(num_host_blocks)
        self.records_changes = records_changes
        self._free = deque(range(num_blocks))
        self._holders = [0] * num_blocks
        self._prefixes: list[Prefix | None] = [None] * num_blocks
        self.num_clears = 0
        self._by_hash: dict[int, Prefix] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._copies: list[Copy] = []
        self._changes: list[Change] = []

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free - self.num_cached

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def match(self, hashes: List[int], tokens: List[int], scope: Scope, known: List[Prefix] = ()) -> list[Prefix]:
        """The longest prefix of `tokens` that some tier holds, block by block; none of it is held yet.

        Those on the device come first. The hash finds a prefix; scope, parent and tokens prove it. `known` is what an
        earlier call found for the same tokens: what of it is there still needs no proof again.
        """
        matched = list(takewhile(attrgetter("is_held"), known))
        parent = matched[-1] if matched else None
        first = len(matched)
        for start, block_hash in zip(
            range(first * self.block_size, len(tokens), self.block_size), hashes[first:], strict=False
        ):
            prefix = self._by_hash.get(block_hash)
            if prefix is None or not prefix.holds(parent, scope, tokens, start):
                break
            matched.append(prefix)
            parent = prefix
        return matched

    def can_allocate(self, num_blocks: int) -> bool:
        return num_blocks <= len(self._free) + len(self._cached)

    def shortage(self, matched: List[Prefix], num_blocks: int) -> int:
        """How many blocks too few there are for a table of `num_blocks` that begins with `matched`."""
        shared = sum(1 for prefix in matched if prefix.block is not None and prefix.block not in self._cached)
        return max(0, num_blocks - shared - len(self._free) - len(self._cached))

    def allocate(self, num_blocks: int) -> list[int]:
        """Blocks held once, for new content; evicts if need be. Raises OutOfBlocks and changes nothing."""
        if not self.can_allocate(num_blocks):
            raise OutOfBlocks(f"{num_blocks} blocks asked for, {self!r}")
        return [self._take() for _ in range(num_blocks)]

    def acquire(self, matched: List[Prefix], num_blocks: int) -> list[int]:
        """A table of `num_blocks` held blocks that begins with `matched`; what is in the host tier will be loaded.

        Raises OutOfBlocks and changes nothing.
        """
        if shortage := self.shortage(matched, num_blocks):
            raise OutOfBlocks(f"{shortage} blocks too few, {self!r}")
        resident = [prefix.block for prefix in matched if prefix.block is not None]
        self.hold(resident)
        loaded = matched[len(resident) :]
        with self.host.keeping(loaded):
            table = resident + [self._take() for _ in range(num_blocks - len(resident))]
        for prefix, block in zip(loaded, table[len(resident) :], strict=False):
            assert prefix.host_block is not None
            self._copies.append(Copy(prefix.host_block, block, Medium.GPU))
            self._place(prefix, block)
        return table

    def hold(self, blocks: List[int]) -> None:
        """One more holder for each of a chain of published blocks."""
        for block in blocks:
            self._cached.pop(block, None)
            self._holders[block] += 1

    def release(self, table: List[int]) -> None:
        """One holder less for each block of a chain, from the tail, so that tails are evicted first."""
        for block in reversed(table):
            self._holders[block] -= 1
            if self._holders[block] == 0:
                self._retire(block)

    def publish(self, table: list[int], index: int, block_hash: int, tokens: List[int], scope: Scope) -> None:
        """Block `index` of a held chain is full and computed: later prompts may share it from now on.

        If the same content is in the cache already, the chain takes that block instead and drops its own. If
        another content has the hash, or the parent is not in the cache, the block stays private.
        """
        block = table[index]
        parent = self._prefixes[table[index - 1]] if index else None
        if index and parent is None:
            return
        start = index * self.block_size
        known = self._by_hash.get(block_hash)
        if known is None:
            self._add(Prefix(block_hash, tuple(tokens[start : start + self.block_size]), parent, scope), block)
        elif known.holds(parent, scope, tokens, start):
            self._join(known, table, index)
        elif known.block is None:
            # In the host tier only: another content, or one whose parent is gone. The newer one is worth more.
            self._drop(known)
            self._add(Prefix(block_hash, tuple(tokens[start : start + self.block_size]), parent, scope), block)

    def take_copies(self) -> tuple[Copy, ...]:
        """What must be copied, in this order, before blocks are written or read again."""
        if not self._copies:
            return ()
        copies, self._copies = tuple(self._copies), []
        return copies

    def take_changes(self) -> list[Change]:
        """What came and went since the last call, in order."""
        changes, self._changes = self._changes, []
        return changes

    def held(self, medium: Medium) -> Iterator[Prefix]:
        """All cached prefixes of a tier, parents before their children."""
        for prefix in self._by_hash.values():
            if (prefix.block if medium is Medium.GPU else prefix.host_block) is not None:
                yield prefix

    def forget_adapter(self, adapter_load: int) -> None:
        """No tier serves what that adapter computed; who holds its blocks keeps them to itself."""
        for prefix in [prefix for prefix in self._by_hash.values() if prefix.scope.adapter_load == adapter_load]:
            self._unpublish(prefix)

    def clear(self) -> None:
        """Nothing is served from any cache any more, and nothing that was to be copied is."""
        changes, self._changes = self._changes, []
        for prefix in list(self._by_hash.values()):
            self._unpublish(prefix)
        self._changes = changes
        self._copies.clear()
        self.num_clears += 1
        self._record(Cleared())

    def _take(self) -> int:
        if self._free:
            block = self._free.popleft()
        else:
            block, _ = self._cached.popitem(last=False)
            self._evict(block)
        self._holders[block] = 1
        return block

    def _retire(self, block: int) -> None:
        if self._prefixes[block] is None:
            self._free.append(block)
        else:
            self._cached[block] = None

    def _add(self, prefix: Prefix, block: int) -> None:
        self._by_hash[prefix.hash] = prefix
        self._place(prefix, block)

    def _join(self, known: Prefix, table: list[int], index: int) -> None:
        """The chain's block holds what `known` is: one copy is enough."""
        block = table[index]
        if known.block is None:
            self._place(known, block)
        elif known.block != block:
            self.hold([known.block])
            self.release([block])
            table[index] = known.block

    def _place(self, prefix: Prefix, block: int) -> None:
        prefix.block = block
        self._prefixes[block] = prefix
        self._record_stored(prefix, Medium.GPU)

    def _evict(self, block: int) -> None:
        """The block is needed: its prefix goes on in the host tier, if that has room or something older."""
        prefix = self._prefixes[block]
        assert prefix is not None
        self._prefixes[block] = None
        prefix.block = None
        if prefix.host_block is not None:
            self.host.touch(prefix)
        else:
            if (oldest := self.host.oldest_if_full()) is not None:
                self._drop(oldest)
            if self.host.add(prefix):
                assert prefix.host_block is not None
                self._copies.append(Copy(block, prefix.host_block, Medium.CPU))
                self._record_stored(prefix, Medium.CPU)
            else:
                del self._by_hash[prefix.hash]
        self._record(Removed([prefix.hash], Medium.GPU))

    def _drop(self, prefix: Prefix) -> None:
        """The prefix leaves the host tier."""
        self.host.remove(prefix)
        if prefix.block is None:
            del self._by_hash[prefix.hash]
        self._record(Removed([prefix.hash], Medium.CPU))

    def _unpublish(self, prefix: Prefix) -> None:
        """Out of both tiers. A block that somebody holds stays theirs, without content for others."""
        block = prefix.block
        if block is not None:
            prefix.block = None
            self._prefixes[block] = None
            if block in self._cached:
                del self._cached[block]
                self._free.append(block)
            self._record(Removed([prefix.hash], Medium.GPU))
        if prefix.host_block is not None:
            self.host.remove(prefix)
            self._record(Removed([prefix.hash], Medium.CPU))
        del self._by_hash[prefix.hash]

    def _record_stored(self, prefix: Prefix, medium: Medium) -> None:
        if not self.records_changes:
            return
        last = self._changes[-1] if self._changes else None
        if isinstance(last, Stored) and last.medium is medium and last.prefixes[-1] is prefix.parent:
            last.prefixes.append(prefix)
        else:
            self._changes.append(Stored([prefix], medium))

    def _record(self, change: Removed | Cleared) -> None:
        if not self.records_changes:
            return
        last = self._changes[-1] if self._changes else None
        if isinstance(change, Removed) and isinstance(last, Removed) and last.medium is change.medium:
            last.hashes.extend(change.hashes)
        else:
            self._changes.append(change)

    def __repr__(self) -> str:
        host = f" {self.host!r}" if self.host.num_blocks else ""
        return f"<BlockPool {self.num_free} free {self.num_used} used {self.num_cached} cached{host}>"
