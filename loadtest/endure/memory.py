"""What a router takes of memory that is ready and has served nobody: before its index, its caches and its clients."""

import time
from dataclasses import dataclass

from loadtest.endure.rig import open_rig
from loadtest.peers.accounting import process_rss_mb, rss_mb

# What it does after its start, such as its first look at the replicas.
_SETTLE_S = 2.0


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident MB (2**20 bytes) of the router's process, and of it and the Redis that it started."""

    router_mb: float
    tree_mb: float


def measure_memory(*, has_tokenizer: bool) -> Memory:
    """Raises LoadError where the router does not start."""
    with open_rig(has_tokenizer=has_tokenizer) as rig:
        time.sleep(_SETTLE_S)
        return Memory(process_rss_mb(rig.router.pid), rss_mb(rig.router.pid))
