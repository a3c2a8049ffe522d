"""Computes batches: from chunks to tensors, through the model, to sampled tokens.

Knows the model, its KV cache and the device. Must not know why a batch is as it is, or what becomes of the tokens.
"""

from dataclasses import dataclass

import torch

from engine.batch import Batch
from engine.model.attention import Paging
from engine.model.config import ModelConfig
from engine.model.decoder import Decoder
from engine.model.kv_cache import KVCache, Span
from engine.model.low_rank import Additions, Slots
from engine.model.tiers import KVTiers
from engine.pooling import pool
from engine.sampler import sample
from engine.sampling import Result


@dataclass(eq=False, slots=True)
class Runner:
    """`model` is None while its weights are not there; whoever took them away steps nothing then."""

    model: Decoder | None
    cache: KVCache
    host_cache: KVCache | None = None
    slots: Slots | None = None

    @property
    def tiers(self) -> KVTiers:
        return KVTiers(self.cache, self.host_cache)

    @torch.inference_mode()
    def run(self, batch: Batch) -> list[Result]:
        """One entry for each chunk: what was chosen behind it, or None where the prompt goes on."""
        if batch.copies:
            self.tiers.copy(batch.copies)
        model = self.model
        assert model is not None, "the weights are not there"
        tokens: list[int] = []
        positions: list[int] = []
        rows: list[int] = []
        for chunk in batch.chunks:
            tokens += chunk.token_ids
            positions += range(chunk.start, chunk.start + chunk.width)
            rows += range(len(tokens) - chunk.num_rows, len(tokens))
        wanted = torch.tensor(rows, dtype=torch.long, device=model.device)
        has_pooling = any(chunk.sequence.request.pooling for chunk in batch.chunks)
        hidden = model.hidden(
            torch.tensor(tokens, device=model.device),
            torch.tensor(positions, device=model.device),
            self._paging(batch, model.config),
            self._deltas(batch),
            None if has_pooling else wanted,
        )
        results: list[Result] = [None] * len(batch.chunks)
        if rows:
            results = sample(model.logits(hidden[wanted] if has_pooling else hidden), batch.chunks)
        if has_pooling:
            pool(hidden, batch.chunks, results)
        return results

    def _paging(self, batch: Batch, config: ModelConfig) -> Paging:
        spans = [Span(chunk.start, chunk.start + chunk.width, chunk.sequence.table) for chunk in batch.chunks]
        return Paging.of(spans, self.cache, config.num_heads, config.windows)

    def _deltas(self, batch: Batch) -> Additions | None:
        """What the adapters of the batch's sequences add; None if they have none."""
        if self.slots is None:
            return None
        for placement in batch.placements:
            self.slots.place(placement.slot, placement.adapter)
        rows_of_slots: dict[int, list[int]] = {}
        first = 0
        for chunk in batch.chunks:
            adapter = chunk.sequence.adapter
            if adapter is not None and adapter.slot is not None:
                rows_of_slots.setdefault(adapter.slot, []).extend(range(first, first + chunk.width))
            first += chunk.width
        return self.slots.additions(rows_of_slots, first)
