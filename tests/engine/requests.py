"""Requests and a core that need no model: tokens come from a rule instead."""

from collections.abc import Callable
from itertools import count
from typing import Any

from engine.adapters import Adapter, AdapterSlots
from engine.batch import Batch, Chunk
from engine.blocks import BlockPool
from engine.core import EngineCore
from engine.sampling import Sampling
from engine.scheduler import Scheduler
from engine.sequence import Request

BLOCK_SIZE = 4

_ids = count()


def request(
    prompt: tuple[int, ...] | range = (1, 2, 3),
    *,
    name: str | None = None,
    priority: int = 0,
    salt: str | None = None,
    adapter: str | None = None,
    **sampling: Any,
) -> Request:
    sampling.setdefault("max_tokens", 8)
    return Request(
        id=name or f"r{next(_ids)}",
        prompt=tuple(prompt),
        sampling=Sampling(**sampling),
        arrived_s=0.0,
        priority=priority,
        salt=salt,
        adapter=adapter,
    )


def scheduler(
    num_blocks: int = 64,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 32,
    num_host_blocks: int = 0,
    num_slots: int = 0,
) -> Scheduler:
    pool = BlockPool(num_blocks, BLOCK_SIZE, num_host_blocks)
    return Scheduler(pool, max_num_seqs, max_num_batched_tokens, AdapterSlots(num_slots))


def add_adapters(queue: Scheduler, *names: str) -> None:
    for name in names:
        queue.adapters.add(Adapter(name, path=f"/adapters/{name}", rank=8, digest=0, load=queue.adapters.next_load()))


def core(**options: int) -> EngineCore:
    return EngineCore(scheduler(**options))


def tokens_by(rule: Callable[[Chunk], int], batch: Batch) -> list[int | None]:
    return [rule(chunk) if chunk.samples else None for chunk in batch.chunks]


def next_number(chunk: Chunk) -> int:
    """The last token plus one: what a request generates depends on its own tokens only."""
    return chunk.sequence.tokens[-1] + 1
