"""Computes batches: from chunks to tensors, through the model, to sampled tokens.

Knows the model, its KV cache and the device. Must not know why a batch is as it is, or what becomes of the tokens.
"""

from dataclasses import dataclass

import torch

from engine.model.attention import Paging
from engine.model.decoder import Decoder
from engine.model.kv_cache import KVCache, Span
from engine.model.tiers import KVTiers
from engine.sampler import sample
from engine.sampling import Result
from engine.scheduler import Batch


@dataclass(frozen=True, slots=True)
class Runner:
    model: Decoder
    cache: KVCache
    host_cache: KVCache | None = None

    @property
    def tiers(self) -> KVTiers:
        return KVTiers(self.cache, self.host_cache)

    @torch.inference_mode()
    def run(self, batch: Batch) -> list[Result]:
        """One entry for each chunk: what was chosen behind it, or None where the prompt goes on."""
        if batch.copies:
            self.tiers.copy(batch.copies)
        tokens: list[int] = []
        positions: list[int] = []
        rows: list[int] = []
        for chunk in batch.chunks:
            tokens += chunk.sequence.tokens[chunk.start : chunk.end]
            positions += range(chunk.start, chunk.end)
            rows += range(len(tokens) - chunk.num_rows, len(tokens))
        hidden = self.model.hidden(self._on_device(tokens), self._on_device(positions), self._paging(batch))
        if not rows:
            return [None] * len(batch.chunks)
        return sample(self.model.logits(hidden[self._on_device(rows)]), batch.chunks)

    def _paging(self, batch: Batch) -> Paging:
        spans = [Span(chunk.start, chunk.end, chunk.sequence.table) for chunk in batch.chunks]
        return Paging.of(spans, self.cache, self.model.config.num_heads, self.model.config.windows)

    def _on_device(self, values: list[int]) -> torch.Tensor:
        return torch.tensor(values, device=self.model.device)
