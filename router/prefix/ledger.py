"""One replica's blocks by its own names: what its events say, in our hashes. Knows events and the block hash; nothing
of sockets, sequence numbers or other replicas.

Engines name blocks by hashes of their own, seeded as they please: those are only names here. The tokens that come with
a block are hashed again by our chain, behind our hash of the block that it follows. What follows a block that we do not
know is left out, and never taken for a beginning.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from msgspec import structs

from pointsman.blockhash import block_hashes
from router.prefix.changes import Change, Emptied, Shifted, gone, held
from router.prefix.events import Cleared, Event, Moved, Removed, Stored
from router.prefix.pages import Pages

# Twice stored means twice held, where an engine computed a block for two requests at once. One that tells of each reuse
# would count without end: above this it is taken for one of those, and counted no more.
MAX_COPIES = 64


class Distrust(Exception):
    """What a replica says cannot be true: its feed is another's, or it lies."""


@dataclass(eq=False, slots=True)
class Tally:
    """Blocks that were told of, and why some were left out."""

    num_stored: int = 0
    num_removed: int = 0
    num_orphans: int = 0
    num_foreign_groups: int = 0
    num_wrong_sizes: int = 0


@dataclass(eq=False, slots=True)
class Ledger:
    """`block_size` is ours, a multiple of the engine's; `adapter` and `salt` are of all blocks without their own;
    `max_blocks` bounds what one feed may make us remember."""

    block_size: int
    adapter: str | None = None
    salt: str | None = None
    max_blocks: int = 4_000_000
    tally: Tally = field(default_factory=Tally)
    _device: dict[int, int] = field(default_factory=dict)
    _host: dict[int, int] = field(default_factory=dict)
    _copies: dict[int, int] = field(default_factory=dict)
    _counts_copies: bool = True
    _group: int | None = None
    _pages: Pages = field(init=False)

    def __post_init__(self) -> None:
        self._pages = Pages(self.block_size)

    @property
    def num_blocks(self) -> int:
        """Names of whole blocks that are known, in either memory."""
        return len(self._device) + len(self._host)

    def apply(self, events: Iterable[Event]) -> list[Change]:
        """What these events change. Raises Distrust."""
        changes: list[Change] = []
        for event in events:
            match event:
                case Stored():
                    self._store(event, changes)
                case Removed():
                    self._remove(event, changes)
                case Moved():
                    self._move(event, changes)
                case Cleared():
                    changes += self.clear() if event.is_host is None else self._clear_one(event.is_host)
        return changes

    def clear(self) -> list[Change]:
        """Nothing is held."""
        self._device, self._host, self._copies = {}, {}, {}
        self._pages = Pages(self.block_size)
        return [Emptied()]

    def _store(self, event: Stored, changes: list[Change]) -> None:
        if not self._is_ours(event) or event.is_host is None:
            return
        if event.parent is None and (self.adapter or self.salt):
            event = structs.replace(event, adapter=event.adapter or self.adapter, salt=event.salt or self.salt)
        if event.block_size < 1 or self.block_size % event.block_size:
            self.tally.num_wrong_sizes += len(event.hashes)
            return
        if self.num_blocks + self._pages.num_pages + len(event.hashes) > self.max_blocks:
            raise Distrust(f"it tells of more than {self.max_blocks} blocks")
        if event.block_size != self.block_size:
            self._store_pages(event, changes)
            return
        before = None
        if event.parent is not None:
            before = self._own(event.parent)
            if before is None:
                self.tally.num_orphans += len(event.hashes)
                return
        try:
            own = block_hashes(
                array("I", event.token_ids),
                self.block_size,
                adapter=event.adapter,
                salt=event.salt,
                extra_keys=event.extra_keys,
                parent=before,
            )
        except (OverflowError, TypeError, ValueError) as error:
            raise Distrust(f"its token ids are none: {error}") from error
        self._name(event.hashes, own, is_host=bool(event.is_host))
        changes.append(held(before, own, is_host=bool(event.is_host)))

    def _name(self, names: Sequence[int], own: Sequence[int], *, is_host: bool) -> None:
        known = self._host if is_host else self._device
        if not known.keys().isdisjoint(names):
            for name, block in zip(names, own, strict=True):
                before = known.get(name)
                if before is not None and before != block:
                    raise Distrust("it gives one name to blocks of different tokens")
                if before is not None and not is_host:
                    self._count_copy(name)
        self.tally.num_stored += len(names)
        known.update(zip(names, own, strict=True))

    def _count_copy(self, name: int) -> None:
        if self._counts_copies:
            self._copies[name] = num_copies = self._copies.get(name, 1) + 1
            if num_copies > MAX_COPIES:
                self._counts_copies, self._copies = False, {}

    def _store_pages(self, event: Stored, changes: list[Change]) -> None:
        """Smaller than our blocks: only what fills one counts."""
        where = bool(event.is_host)
        try:
            filled = self._pages.store(event, self._own)
        except (OverflowError, TypeError, ValueError) as error:
            raise Distrust(f"its token ids are none: {error}") from error
        self.tally.num_orphans += filled.num_orphans
        for name, before, block in filled.blocks:
            self._name([name], [block], is_host=where)
            changes.append(held(before, [block], is_host=where))

    def _remove(self, event: Removed, changes: list[Change]) -> None:
        if event.is_host is None or (event.group is not None and event.group != self._group):
            return
        known, blocks = (self._host if event.is_host else self._device), []
        for name in event.hashes:
            num_copies = 0 if event.is_host else self._copies.pop(name, 0)
            if num_copies > 2:
                self._copies[name] = num_copies - 1
            if num_copies > 1:
                continue
            own = known.pop(name, None)
            if own is not None:
                blocks.append(own)
            blocks += self._pages.remove(name)
        self.tally.num_removed += len(blocks)
        if blocks:
            changes.append(gone(blocks, is_host=event.is_host))

    def _move(self, event: Moved, changes: list[Change]) -> None:
        source, target = (self._device, self._host) if event.is_host else (self._host, self._device)
        own = source.pop(event.hash, None)
        if own is not None:
            target[event.hash] = own
            changes.append(Shifted(own, event.is_host))

    def _clear_one(self, is_host: bool) -> list[Change]:
        known = self._host if is_host else self._device
        blocks = list(known.values())
        known.clear()
        return [gone(blocks, is_host=is_host)] if blocks else []

    def _own(self, name: int) -> int | None:
        own = self._device.get(name)
        return self._host.get(name) if own is None else own

    def _is_ours(self, event: Stored) -> bool:
        """Hybrid models have several caches, one after the other for the same tokens: the first whole one is the
        prefix's."""
        if event.group is None:
            return True
        if self._group is None and not event.is_windowed:
            self._group = event.group
        if event.group != self._group:
            self.tally.num_foreign_groups += 1
        return event.group == self._group

    def __repr__(self) -> str:
        return f"<Ledger {len(self._device)} blocks, {len(self._host)} in host memory>"
