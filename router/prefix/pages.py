"""Pages smaller than our blocks, put together. Knows pages of one size, their names and tokens; nothing of memories.

SGLang's pages are one token by default: hashing each would cost more than it tells. A block of ours is whole once all
its pages are there; any page may be followed by several others.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from pointsman.blockhash import block_hashes
from router.prefix.events import Stored

Own = Callable[[int], int | None]


class _Draft(msgspec.Struct, eq=False, gc=False):
    """A block in the making: what it follows, its tokens so far, and the pages that are its own: those behind the first
    `num_shared` tokens. `own` is its hash once it is whole; `branches` share its first pages."""

    parent: int | None
    tokens: "array[int]"
    num_shared: int
    adapter: str | None
    salt: str | None
    keys: tuple[bytes, ...]
    pages: list[int]
    branches: "list[_Draft]"
    own: int | None = None

    @classmethod
    def behind(cls, parent: int | None, event: Stored) -> "_Draft":
        return cls(parent, array("I"), 0, event.adapter, event.salt, (), [], [])

    def branch(self, num_tokens: int) -> "_Draft":
        """Another that begins with the same tokens."""
        branch = _Draft(self.parent, self.tokens[:num_tokens], num_tokens, self.adapter, self.salt, self.keys, [], [])
        self.branches.append(branch)
        return branch

    def num_tokens_before(self, page: int) -> int:
        """Tokens that lead to one of its own pages."""
        num_own = len(self.tokens) - self.num_shared
        num_pages = len(self.pages) + (self.own is not None)
        return self.num_shared + self.pages.index(page) * (num_own // num_pages)

    def finish(self) -> int:
        (self.own,) = block_hashes(
            self.tokens,
            len(self.tokens),
            adapter=self.adapter,
            salt=self.salt,
            extra_keys=[self.keys] if self.keys else None,
            parent=self.parent,
        )
        return self.own


@dataclass(frozen=True, slots=True)
class Filled:
    """Blocks that became whole: the name of the last page, the block before, and its own hash."""

    blocks: Sequence[tuple[int, int | None, int]]
    num_orphans: int = 0


@dataclass(eq=False, slots=True)
class Pages:
    """`block_size` in tokens is that of a whole block."""

    block_size: int
    _drafts: dict[int, _Draft] = field(default_factory=dict)

    @property
    def num_pages(self) -> int:
        """Pages that complete no block."""
        return len(self._drafts)

    def store(self, event: Stored, own: Own) -> Filled:
        """`own` gives our hash of the block that a page of this name completes. Raises ValueError for token ids that
        are none."""
        tokens, size = array("I", event.token_ids), event.block_size
        parent, filled = event.parent, dict[int, tuple[int | None, int]]()
        for at, name in enumerate(event.hashes):
            if name not in self._drafts and own(name) is None:
                draft = self._draft_behind(parent, event, lambda page: filled[page][1] if page in filled else own(page))
                if draft is None:
                    return Filled(_listed(filled), len(event.hashes) - at)
                draft.tokens += tokens[at * size : (at + 1) * size]
                draft.keys += event.extra_keys[at] if event.extra_keys else ()
                if len(draft.tokens) == self.block_size:
                    filled[name] = (draft.parent, draft.finish())
                else:
                    draft.pages.append(name)
                    self._drafts[name] = draft
            parent = name
        return Filled(_listed(filled))

    def remove(self, name: int) -> list[int]:
        """Our hashes of the blocks that were made with this page, which completes none."""
        draft = self._drafts.pop(name, None)
        if draft is None:
            return []
        # Of those that begin alike, the ones that parted before this page do not have it.
        found = [each for each in draft.branches if each.num_shared > draft.num_tokens_before(name)]
        blocks = [] if draft.own is None else [draft.own]
        while found:
            each = found.pop()
            found += each.branches
            if each.own is not None:
                blocks.append(each.own)
        return blocks

    def _draft_behind(self, parent: int | None, event: Stored, own: Own) -> _Draft | None:
        """Where the page after this one goes; None where nobody knows what is before it."""
        if parent is None:
            return _Draft.behind(None, event)
        draft = self._drafts.get(parent)
        if draft is None:
            before = own(parent)
            return None if before is None else _Draft.behind(before, event)
        end = draft.num_shared + (draft.pages.index(parent) + 1) * event.block_size
        return draft if end == len(draft.tokens) and draft.own is None else draft.branch(end)

    def __repr__(self) -> str:
        return f"<Pages {len(self._drafts)} in blocks of {self.block_size} tokens>"


def _listed(filled: dict[int, tuple[int | None, int]]) -> list[tuple[int, int | None, int]]:
    return [(name, before, block) for name, (before, block) in filled.items()]
