"""A router that begins asks its siblings on other hosts what they sent where, and how fast replicas are: so it is not
blind until it has learned it all again. Knows chains of block hashes, lessons and the siblings' admin ports; knows
nothing of replicas but their ids.

What a sibling says is a guess like any dispatch. Replicas that tell of their caches themselves are asked by the feed.
"""

import logging
import time
from collections.abc import Iterable, Sequence
from typing import TypeVar

import aiohttp
import msgspec

from router.prefix.index import BlockIndex
from router.replicas.exchange import is_of_this_host
from router.replicas.lessons import Lesson
from router.spec import ReplicaSpec

PATH, LESSONS_PATH = "/admin/prefix", "/admin/lessons"
TIMEOUT = aiohttp.ClientTimeout(total=10.0)
MAX_BYTES = 64 * 2**20

Chains = Sequence[tuple[str, bytes]]
"""Replica ids, and the block hashes of a prompt that each holds, packed as 64 bits each."""

T = TypeVar("T")
log = logging.getLogger(__name__)
_decoder = msgspec.msgpack.Decoder(list[tuple[str, bytes]])
_lessons_decoder = msgspec.msgpack.Decoder(list[Lesson])


def export(index: BlockIndex, replica_ids: Iterable[str]) -> bytes:
    """What is known of these replicas, the longest unused of each first; of more than fits, the latest."""
    ids = list(replica_ids)
    share = MAX_BYTES // max(1, len(ids))
    chains: list[tuple[str, bytes]] = []
    for id in ids:
        kept: list[tuple[str, bytes]] = []
        num_bytes = 0
        for chain in reversed(list(index.chains(id))):
            num_bytes += len(chain) * chain.itemsize
            if num_bytes > share:
                break
            kept.append((id, chain.tobytes()))
        chains += reversed(kept)
    return pack(chains)


def pack(chains: Chains) -> bytes:
    return msgspec.msgpack.encode(chains)


def pack_lessons(lessons: Iterable[Lesson]) -> bytes:
    """In unix seconds."""
    by_s = time.time() - time.monotonic()
    return msgspec.msgpack.encode([lesson.moved(by_s) for lesson in lessons])


async def ask(siblings: Sequence[ReplicaSpec]) -> Chains:
    """What the first sibling that answers knows; nothing where none does."""
    _, chains = await _ask(siblings, PATH, _decoder)
    return [(id, chain) for id, chain in chains if chain and not len(chain) % 8]


async def ask_lessons(siblings: Sequence[ReplicaSpec]) -> Sequence[Lesson]:
    """What the first sibling that answers has learned, in seconds of our own clock."""
    sibling, lessons = await _ask(siblings, LESSONS_PATH, _lessons_decoder)
    by_s, is_neighbour = time.monotonic() - time.time(), sibling is not None and is_of_this_host(sibling.url)
    return [
        lesson.moved(by_s)
        for lesson in lessons
        # What is on a sibling's own host is another machine here.
        if is_neighbour or not is_of_this_host(f"http://{lesson.replica_id}")
    ]


async def _ask(
    siblings: Sequence[ReplicaSpec], path: str, decoder: "msgspec.msgpack.Decoder[list[T]]"
) -> tuple[ReplicaSpec | None, Sequence[T]]:
    """The first that answers, and what it says."""
    async with aiohttp.ClientSession(timeout=TIMEOUT) as session:
        for sibling in siblings:
            headers = {"authorization": f"Bearer {sibling.api_key}"} if sibling.api_key is not None else {}
            try:
                async with session.get(sibling.url + path, headers=headers, raise_for_status=True) as answer:
                    told = decoder.decode(await answer.read())
            except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError) as error:
                log.info("%s says nothing at %s: %r", sibling.id, path, error)
            else:
                log.info("%s told of %d at %s", sibling.id, len(told), path)
                return sibling, told
    return None, []
