"""A prefix index that is always right: it looks into the replicas' own pools. What a router would know if events took
no time. Knows block pools; knows nothing of time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.blocks import BlockPool


@dataclass(frozen=True, slots=True)
class FreshIndex:
    """`ports.PrefixIndex` over pools by replica id."""

    pools: Mapping[str, BlockPool]

    def match(self, block_hashes: Sequence[int]) -> Mapping[str, int]:
        found = {id: _num_leading(pool._by_hash, block_hashes) for id, pool in self.pools.items()}
        return {id: num_blocks for id, num_blocks in found.items() if num_blocks}

    def insert(self, replica_id: str, block_hashes: Sequence[int]) -> None:
        """Nothing: they are held when the replica has computed them."""

    def remove(self, replica_id: str) -> None:
        """Nothing: replicas do not go here."""

    def num_blocks(self, replica_id: str) -> int:
        return len(self.pools[replica_id]._by_hash)


def _num_leading(held: Mapping[int, object], block_hashes: Sequence[int]) -> int:
    for number, block in enumerate(block_hashes):
        if block not in held:
            return number
    return len(block_hashes)
