"""The pool of KV blocks: who holds which, and which freed ones still serve a prefix.

Knows block ids, reference counts and the tokens that a cached block stands for. Must not know sequences, tensors
or time.

A block is free (no content worth keeping), used (held by someone) or cached (held by nobody, content kept until
the room is needed): free + used + cached == total. A block enters the cache only behind a parent that is in it,
a chain is held from its head and let go from its tail, so the least recently used block never has a child in the
cache. That makes a parent's block id an exact name for the whole prefix.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence as List
from dataclasses import dataclass


class OutOfBlocks(Exception):
    """The pool cannot give as many blocks as were asked for."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a cached block holds. The hash finds it; the rest proves it: 64 bits may collide."""

    hash: int
    tokens: tuple[int, ...]
    parent: int | None
    salt: str | None


@dataclass(eq=False, slots=True)
class BlockPool:
    num_blocks: int
    block_size: int
    _free: deque[int]
    _holders: list[int]
    _contents: list[Content | None]
    _by_hash: dict[int, int]
    _cached: OrderedDict[int, None]

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = deque(range(num_blocks))
        self._holders = [0] * num_blocks
        self._contents = [None] * num_blocks
        self._by_hash = {}
        self._cached = OrderedDict()

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

    def match(self, hashes: List[int], tokens: List[int], salt: str | None) -> list[int]:
        """The blocks that hold the longest cached prefix of `tokens`; they are not yet held."""
        matched: list[int] = []
        for index, block_hash in enumerate(hashes):
            parent = matched[-1] if matched else None
            block = self._find(self._content(block_hash, index, tokens, parent, salt))
            if block is None:
                break
            matched.append(block)
        return matched

    def can_allocate(self, num_blocks: int, keeping: List[int] = ()) -> bool:
        """Whether so many blocks are to be had without evicting the ones in `keeping`."""
        kept = sum(1 for block in keeping if block in self._cached)
        return num_blocks <= len(self._free) + len(self._cached) - kept

    def allocate(self, num_blocks: int) -> list[int]:
        """Blocks held once, for new content; evicts if need be. Raises OutOfBlocks and changes nothing."""
        if not self.can_allocate(num_blocks):
            raise OutOfBlocks(f"{num_blocks} blocks asked for, {self!r}")
        return [self._take() for _ in range(num_blocks)]

    def hold(self, blocks: List[int]) -> None:
        """One more holder for each of a chain of matched blocks."""
        for block in blocks:
            self._cached.pop(block, None)
            self._holders[block] += 1

    def release(self, table: List[int]) -> None:
        """One holder less for each block of a chain, from the tail, so that tails are evicted first."""
        for block in reversed(table):
            self._holders[block] -= 1
            if self._holders[block] == 0:
                self._retire(block)

    def publish(self, table: list[int], index: int, block_hash: int, tokens: List[int], salt: str | None) -> None:
        """Block `index` of a held chain is full and computed: later prompts may share it from now on.

        If the same content is in the cache already, the chain takes that block instead and drops its own. If
        another content has the hash, or the parent is not in the cache, the block stays private.
        """
        block = table[index]
        parent = table[index - 1] if index else None
        if parent is not None and self._contents[parent] is None:
            return
        content = self._content(block_hash, index, tokens, parent, salt)
        twin = self._find(content)
        if twin is not None:
            self.hold([twin])
            self.release([block])
            table[index] = twin
        elif block_hash not in self._by_hash:
            self._by_hash[block_hash] = block
            self._contents[block] = content

    def _content(self, block_hash: int, index: int, tokens: List[int], parent: int | None, salt: str | None) -> Content:
        start = index * self.block_size
        return Content(block_hash, tuple(tokens[start : start + self.block_size]), parent, salt)

    def _find(self, content: Content) -> int | None:
        block = self._by_hash.get(content.hash)
        return block if block is not None and self._contents[block] == content else None

    def _take(self) -> int:
        if self._free:
            block = self._free.popleft()
        else:
            block, _ = self._cached.popitem(last=False)
            self._forget(block)
        self._holders[block] = 1
        return block

    def _retire(self, block: int) -> None:
        if self._contents[block] is None:
            self._free.append(block)
        else:
            self._cached[block] = None

    def _forget(self, block: int) -> None:
        content = self._contents[block]
        assert content is not None
        del self._by_hash[content.hash]
        self._contents[block] = None

    def __repr__(self) -> str:
        return f"<BlockPool {self.num_free} free {self.num_used} used {self.num_cached} cached>"
