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
from engine.model.config import ModelConfig
from engine.model.decoder import Decoder, Layer
from engine.model.embedding import Embedding, MappedEmbedding, TableEmbedding
from engine.model.layers import RmsNorm, rotary_frequencies
from engine.model.linear import LEAST_ROWS, FourBitMatrix, Linear, Packed, can_be_four_bit, four_bit_linear, linear_of
from engine.model.placement import FourBits
from engine.model.weights import EMBEDDINGS, HEAD, NORM, ROPE_FACTORS, layer_prefix

_MOST_THREADS = 4

Progress = Callable[[int, int], None]
"""(layers loaded, layers in all)"""


def load(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    device: torch.device,
    four_bits: FourBits = FourBits.NEVER,
    progress: Progress | None = None,
) -> Decoder:
    """Four bits are for a CPU and bfloat16 alone. Raises ModelError naming file and tensor, MemoryError if the device
    has no room."""
    source = _Source(checkpoint, dtype, device, four_bits)
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
    four_bits: FourBits

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
        """On a CPU the head is packed, so that a tied table of embeddings would be a second copy: it stays mapped."""
        checkpoint = self.checkpoint
        head = linear_of(self.tensor(EMBEDDINGS if self.config.tie_embeddings else HEAD, self.dtype))
        if self.device.type == "cpu":
            return MappedEmbedding(lambda tokens: checkpoint.rows(EMBEDDINGS, tokens)), head
        tied = getattr(head, "weight", None) if self.config.tie_embeddings else None
        return TableEmbedding(self.tensor(EMBEDDINGS, self.dtype) if tied is None else tied), head

    def _norm(self, name: str) -> RmsNorm:
        return RmsNorm.of(self.tensor(name), self.config.rms_norm_eps)

    def _linear(self, *names: str, bias: bool = False) -> Linear:
        """The projections of one input, one below the other."""
        biases = _joined([self.tensor(f"{name}.bias", self.dtype) for name in names]) if bias else None
        stored = None if self.four_bits is FourBits.NEVER else self._stored(names)
        if stored is not None and self.four_bits is FourBits.ALWAYS:
            return four_bit_linear(stored, biases, None)
        dense = linear_of(_joined([self.tensor(f"{name}.weight", self.dtype) for name in names]), biases)
        return dense if stored is None else four_bit_linear(stored, biases, dense)

    def _stored(self, names: tuple[str, ...]) -> FourBitMatrix | None:
        """None unless all of them are stored with four bits, in sizes that the kernel takes."""
        parts = [part for name in names if (part := self.checkpoint.four_bits(f"{name}.weight")) is not None]
        if len(parts) < len(names):
            return None
        fields = zip(*((part.nibbles, part.scales, part.minima) for part in parts), strict=True)
        matrix = FourBitMatrix(*(_joined(list(field)) for field in fields))
        return matrix if can_be_four_bit(matrix) else None


def _joined(tensors: list[Tensor]) -> Tensor:
    return torch.cat(tensors) if len(tensors) > 1 else tensors[0]


def _return_freed_memory() -> None:
    """What reading left free in the C library's pools goes back to the system; elsewhere than with glibc, nothing."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
