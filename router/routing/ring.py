"""Consistent hashing: the same key leads to the same replica in every router, whatever else that router knows.

Knows replica ids and keys; nothing of load. Hashes are XXH3-64, so that no process's own seed is in them.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import lru_cache

from xxhash import xxh3_64_intdigest

from router.core import Demand, Prompt

POINTS_PER_REPLICA = 160


@lru_cache(maxsize=64)
def ring(ids: tuple[str, ...]) -> tuple[list[int], list[str]]:
    """Sorted points, and whose each is."""
    points = sorted(
        (xxh3_64_intdigest(f"{id}#{number}".encode()), id) for id in ids for number in range(POINTS_PER_REPLICA)
    )
    return [point for point, _ in points], [id for _, id in points]


def walk(ids: Sequence[str], key: int) -> Iterator[str]:
    """All replicas, each once, in the order in which the key meets them."""
    points, owners = ring(tuple(sorted(ids)))
    at, seen = bisect_left(points, key), set[str]()
    for step in range(len(owners)):
        id = owners[(at + step) % len(owners)]
        if id not in seen:
            seen.add(id)
            yield id


def prefix_key(demand: Demand, num_tokens: int, seed: int = 0) -> int:
    """Hash of the leading `num_tokens` tokens in whole blocks, at least one block; of the length, where the prompt has
    none."""
    prompt = demand.prompt
    if not prompt.block_hashes:
        return xxh3_64_intdigest(prompt.num_tokens.to_bytes(8, "little"), seed)
    at = min(max(1, num_tokens // prompt.block_size), len(prompt.block_hashes)) - 1
    return xxh3_64_intdigest(prompt.block_hashes[at].to_bytes(8, "little"), seed)


def affinity(replica_id: str, session: str | None, prompt: Prompt) -> int:
    """Rendezvous rank of a replica for a session, or without one for the prompt: the lowest is the same everywhere."""
    if session is not None:
        key = session.encode()
    else:
        key = prompt.block_hashes[0].to_bytes(8, "little") if prompt.block_hashes else b""
    return xxh3_64_intdigest(key, xxh3_64_intdigest(replica_id.encode()))
