"""The bytes of KV blocks: between the device and host memory, and out of the process and into it.

Knows the KV cache's tensors. Must not know why a block moves, prefixes, or sockets.
"""

from collections.abc import Iterable
from collections.abc import Sequence as List
from dataclasses import dataclass

import torch

from engine.model.kv_cache import KVCache
from engine.prefixes import Copy, Medium


@dataclass(frozen=True, slots=True)
class KVTiers:
    """The device's cache, and the host's of the same layout, if there is one."""

    device: KVCache
    host: KVCache | None = None

    def copy(self, copies: Iterable[Copy]) -> None:
        """In their order: one may need the block that another leaves."""
        assert self.host is not None
        device, host = self.device.blocks, self.host.blocks
        for copy in copies:
            source, target = (host, device) if copy.to is Medium.GPU else (device, host)
            target[copy.target].copy_(source[copy.source])

    @torch.inference_mode()
    def read(self, blocks: List[int]) -> memoryview:
        """The blocks' bytes, one block after the other. They must be held while this runs."""
        chosen = self.device.blocks.index_select(0, self._places(blocks))
        return chosen.cpu().view(-1).view(torch.uint8).numpy().data

    @torch.inference_mode()
    def write(self, blocks: List[int], content: bytearray) -> None:
        """What `read` gave, into held blocks that nobody else reads yet. Raises ValueError if the size is another, or
        the cache is not there any more."""
        cache = self.device.blocks
        shape = (len(blocks), *cache.shape[1:])
        if len(content) != torch.Size(shape).numel() * cache.itemsize:
            raise ValueError(f"{len(content)} bytes cannot be {len(blocks)} KV blocks of ours")
        if max(blocks) >= len(cache):
            raise ValueError("the KV cache is not there any more")
        received = torch.frombuffer(content, dtype=torch.uint8).view(cache.dtype).view(shape)
        cache.index_copy_(0, self._places(blocks), received.to(cache.device))

    def _places(self, blocks: List[int]) -> torch.Tensor:
        return torch.tensor(blocks, dtype=torch.long, device=self.device.blocks.device)
