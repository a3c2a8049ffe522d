"""What changed in one replica's cache, in our own hashes: what a feed makes of an engine's events, the index takes in,
and processes send each other. Knows blocks; nothing of engines, tokens or sockets."""

from array import array
from collections.abc import Sequence

import msgspec

from router.prefix.index import BlockIndex


class _Change(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Blocks are packed as 64 bits each, in this machine's order."""


class Held(_Change, frozen=True):
    """The replica holds these blocks, each behind the one before; `parent` is before the first, None at a beginning."""

    parent: int | None
    blocks: bytes
    is_host: bool = False


class Gone(_Change, frozen=True):
    """It holds these no more."""

    blocks: bytes
    is_host: bool = False


class Shifted(_Change, frozen=True):
    """It holds this one in the other memory now."""

    block: int
    is_host: bool


class Emptied(_Change, frozen=True):
    """It holds nothing any more."""


Change = Held | Gone | Shifted | Emptied


def held(parent: int | None, blocks: Sequence[int], *, is_host: bool = False) -> Held:
    return Held(parent, array("Q", blocks).tobytes(), is_host)


def gone(blocks: Sequence[int], *, is_host: bool = False) -> Gone:
    return Gone(array("Q", blocks).tobytes(), is_host)


def apply(index: BlockIndex, replica_id: str, change: Change) -> None:
    match change:
        case Held():
            index.store(replica_id, change.parent, array("Q", change.blocks), is_host=change.is_host)
        case Gone():
            index.drop(replica_id, array("Q", change.blocks), is_host=change.is_host)
        case Shifted():
            index.move(replica_id, change.block, to_host=change.is_host)
        case Emptied():
            index.remove(replica_id)


def everything(index: BlockIndex, replica_id: str) -> list[Change]:
    """What makes an index that knows nothing of this replica know what this one was told."""
    return [Emptied(), *(Held(*fact) for fact in index.facts(replica_id))]


def num_blocks(change: Change) -> int:
    return len(change.blocks) // 8 if isinstance(change, Held | Gone) else 1
