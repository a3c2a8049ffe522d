"""The bytes of KV blocks: between the device and host memory, and out of the process and into it.

Knows the KV cache's tensors and how a block lies in them. Must not know why a block moves, prefixes, or sockets.
"""

from collections.abc import Iterable
from collections.abc import Sequence as List
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model.kv_cache import KVCache
from engine.prefixes import Copy, Medium


@dataclass(frozen=True, slots=True)
class KVTiers:
    """The device's cache, and the host's of the same layout, if there is one."""

    device: KVCache
    host: KVCache | None = None

    @property
    def bytes_per_block(self) -> int:
        return sum(tensor[:, 0].nbytes for tensor in _tensors(self.device))

    def copy(self, copies: Iterable[Copy]) -> None:
        """In their order: one may need the block that another leaves."""
        assert self.host is not None
        device, host = _tensors(self.device), _tensors(self.host)
        for copy in copies:
            sources, targets = (host, device) if copy.to is Medium.GPU else (device, host)
            for source, target in zip(sources, targets, strict=True):
                target[:, copy.target].copy_(source[:, copy.source])

    @torch.inference_mode()
    def read(self, blocks: List[int]) -> memoryview:
        """The blocks' bytes, one block after the other. They must be held while this runs."""
        chosen = torch.tensor(blocks, dtype=torch.long, device=self.device.keys.device)
        # [blocks, keys and values, layers, ...]
        parts = [tensor.index_select(1, chosen).transpose(0, 1) for tensor in _tensors(self.device)]
        return torch.stack(parts, dim=1).cpu().contiguous().view(-1).view(torch.uint8).numpy().data

    @torch.inference_mode()
    def write(self, blocks: List[int], content: bytearray) -> None:
        """What `read` gave, into held blocks that nobody else reads yet. Raises ValueError if the size is another."""
        if len(content) != len(blocks) * self.bytes_per_block:
            raise ValueError(f"{len(content)} bytes for {len(blocks)} KV blocks of {self.bytes_per_block}")
        keys = self.device.keys
        shape = (len(blocks), 2, *keys[:, 0].shape)
        parts = torch.frombuffer(content, dtype=torch.uint8).view(keys.dtype).view(shape).to(keys.device)
        chosen = torch.tensor(blocks, dtype=torch.long, device=keys.device)
        for tensor, part in zip(_tensors(self.device), parts.unbind(1), strict=True):
            tensor.index_copy_(1, chosen, part.transpose(0, 1))


def _tensors(cache: KVCache) -> tuple[Tensor, Tensor]:
    """Each with the blocks as its second dimension."""
    return cache.keys, cache.values
