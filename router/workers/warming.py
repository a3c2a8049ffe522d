"""A router that begins asks its siblings on other hosts what they sent where: so it is not blind until it has learned
it all again. Knows chains of block hashes and the siblings' admin ports; knows nothing of replicas but their ids.

What a sibling says is a guess like any dispatch. Replicas that tell of their caches themselves are asked by the feed.
"""

import logging
from collections.abc import Iterable, Sequence

import aiohttp
import msgspec

from router.prefix.index import BlockIndex
from router.spec import ReplicaSpec

PATH = "/admin/prefix"
TIMEOUT = aiohttp.ClientTimeout(total=10.0)
MAX_BYTES = 64 * 2**20

Chains = Sequence[tuple[str, bytes]]
"""Replica ids, and the block hashes of a prompt that each holds, packed as 64 bits each."""

log = logging.getLogger(__name__)
_decoder = msgspec.msgpack.Decoder(list[tuple[str, bytes]])


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


async def ask(siblings: Sequence[ReplicaSpec]) -> Chains:
    """What the first sibling that answers knows; nothing where none does."""
    async with aiohttp.ClientSession(timeout=TIMEOUT) as session:
        for sibling in siblings:
            headers = {"authorization": f"Bearer {sibling.api_key}"} if sibling.api_key is not None else {}
            try:
                async with session.get(sibling.url + PATH, headers=headers, raise_for_status=True) as answer:
                    chains = _decoder.decode(await answer.read())
            except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError) as error:
                log.info("%s says nothing of caches: %r", sibling.id, error)
            else:
                log.info("%s told of %d prompts in caches", sibling.id, len(chains))
                return [(id, chain) for id, chain in chains if chain and not len(chain) % 8]
    return []
