"""From a checkpoint to a decoder in memory: reads, fuses and arranges each weight, layer by layer.

Knows which weights make up which part. Must not know file formats or how the parts compute. At most a few layers are
in memory twice, while they are being arranged.
"""

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model.checkpoint import Checkpoint
from engine.model.coded import Coded, Codes, FourBit
from engine.model.config import ModelConfig
from engine.model.decoder import Decoder, Layer
from engine.model.embedding import Embedding, MappedEmbedding, TableEmbedding
from engine.model.layers import RmsNorm, rotary_frequencies
from engine.model.linear import LEAST_ROWS, BySize, Linear, Packed, linear_of
from engine.model.placement import Quantized
from engine.model.weights import EMBEDDINGS, HEAD, NORM, ROPE_FACTORS, layer_prefix

_MOST_THREADS = 4

Progress = Callable[[int, int], None]
"""(layers loaded, layers in all)"""


def load(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    device: torch.device,
    quantized: Quantized = Quantized.WIDEN,
    progress: Progress | None = None,
) -> Decoder:
    """Quantized matrices are kept on a CPU alone. Raises ModelError naming file and tensor, MemoryError if the device
    has no room."""
    source = _Source(checkpoint, dtype, device, quantized)
    config = checkpoint.config
    num_threads = min(_MOST_THREADS, os.cpu_count() or 1)
    layers: list[Layer] = []
    with ThreadPoolExecutor(num_threads, thread_name_prefix="engine-load") as threads:
        for layer in threads.map(source.layer, range(config.num_layers)):
            layers.append(layer)
            if progress is not None:
                progress(len(layers), config.num_layers)
    decoder = source.decoder(tuple(layers))
    _return_freed_memory()
    return decoder


@dataclass(frozen=True, slots=True)
class _Source:
    """Reads parts of the model to where and in what they compute."""

    checkpoint: Checkpoint
    dtype: torch.dtype
    device: torch.device
    quantized: Quantized

    @property
    def config(self) -> ModelConfig:
        return self.checkpoint.config

    def decoder(self, layers: tuple[Layer, ...]) -> Decoder:
        config = self.config
        factors = self.tensor(ROPE_FACTORS) if config.rope.has_factors else None
        embedding, head = self._ends()
        return Decoder(
            config=config,
            dtype=self.dtype,
            embedding=embedding,
            layers=layers,
            norm=self._norm(NORM),
            head=head,
            frequencies=rotary_frequencies(config.rope, config.head_dim, factors, self.device),
            least_rows=LEAST_ROWS if isinstance(layers[0].qkv, Packed) else 1,
        )

    def layer(self, index: int) -> Layer:
        prefix = layer_prefix(index)
        has_head_norms = self.config.variant.has_qk_norm
        return Layer(
            attention_norm=self._norm(f"{prefix}input_layernorm.weight"),
            qkv=self._linear(*(f"{prefix}self_attn.{name}_proj" for name in "qkv"), bias=self._has_bias),
            query_norm=self._norm(f"{prefix}self_attn.q_norm.weight") if has_head_norms else None,
            key_norm=self._norm(f"{prefix}self_attn.k_norm.weight") if has_head_norms else None,
            output=self._linear(f"{prefix}self_attn.o_proj"),
            feed_forward_norm=self._norm(f"{prefix}post_attention_layernorm.weight"),
            gate_up=self._linear(f"{prefix}mlp.gate_proj", f"{prefix}mlp.up_proj"),
            down=self._linear(f"{prefix}mlp.down_proj"),
        )

    def tensor(self, name: str, dtype: torch.dtype = torch.float32) -> Tensor:
        return self.checkpoint.read(name).to(device=self.device, dtype=dtype)

    @property
    def _has_bias(self) -> bool:
        return self.config.variant.has_qkv_bias

    def _ends(self) -> tuple[Embedding, Linear]:
        """On a CPU the head is rearranged, and a tied table of embeddings would be a second copy: it stays mapped."""
        checkpoint = self.checkpoint
        head = self._linear((EMBEDDINGS if self.config.tie_embeddings else HEAD).removesuffix(".weight"))
        if self.device.type == "cpu":
            return MappedEmbedding(lambda tokens: checkpoint.rows(EMBEDDINGS, tokens)), head
        tied = getattr(head, "weight", None) if self.config.tie_embeddings else None
        return TableEmbedding(self.tensor(EMBEDDINGS, self.dtype) if tied is None else tied), head

    def _norm(self, name: str) -> RmsNorm:
        return RmsNorm.of(self.tensor(name), self.config.rms_norm_eps)

    def _linear(self, *names: str, bias: bool = False) -> Linear:
        """The projections of one input, one below the other."""
        biases = _joined([self.tensor(f"{name}.bias", self.dtype) for name in names]) if bias else None
        kept = None if self.quantized is Quantized.WIDEN else self._kept(names, biases)
        if kept is not None and self.quantized is Quantized.KEEP:
            return kept
        dense = linear_of(_joined([self.tensor(f"{name}.weight", self.dtype) for name in names]), biases)
        return dense if kept is None else BySize(kept, dense)

    def _kept(self, names: tuple[str, ...], bias: Tensor | None) -> Coded | FourBit | None:
        """None unless all of them are stored with as many bits, and there is a kernel for these."""
        parts = [codes for name in names if (codes := self.checkpoint.codes(f"{name}.weight")) is not None]
        joined = Codes.joined(parts) if len(parts) == len(names) else None
        if joined is None:
            return None
        ours = Coded.of(joined, bias)
        return FourBit.of(joined, bias) if ours is None and self.dtype is torch.bfloat16 else ours


def _joined(tensors: list[Tensor]) -> Tensor:
    return torch.cat(tensors) if len(tensors) > 1 else tensors[0]


def _return_freed_memory() -> None:
    """What reading left free in the C library's pools goes back to the system; elsewhere than with glibc, nothing."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
