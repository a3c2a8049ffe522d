"""The arithmetic that transformer layers share: normalisation and rotary positions.

Knows tensors. Must not know weights' names, KV or files.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import silu

from engine.model.compiled_layers import gated, normalised, turned
from engine.model.config import Llama3Scaling, Rope


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, in float32. `scale` is weight * sqrt(size), and
    `floor` eps * size: with these it takes the fewest passes."""

    scale: Tensor
    floor: Tensor

    @classmethod
    def of(cls, weight: Tensor, eps: float) -> "RmsNorm":
        size = weight.shape[-1]
        return cls(weight.float() * math.sqrt(size), torch.tensor(eps * size, device=weight.device))

    def __call__(self, hidden: Tensor) -> Tensor:
        """float32 -> float32"""
        made = normalised(hidden, self.scale, self.floor)
        if made is not None:
            return made
        length = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True)
        return (hidden * torch.addcmul(self.floor, length, length).rsqrt_()).mul_(self.scale)


def rotary_frequencies(rope: Rope, head_dim: int, factors: Tensor | None, device: torch.device) -> Tensor:
    """[head_dim / 2] float32, in radians a token. `factors` are what the checkpoint divides them by."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
    frequencies: Tensor = 1.0 / rope.theta**exponents
    if rope.llama3 is not None:
        frequencies = _scaled_as_llama3(frequencies, rope.llama3)
    if factors is not None:
        frequencies = frequencies / factors.to(frequencies)
    return frequencies / rope.linear_factor


@dataclass(frozen=True, slots=True)
class Rotation:
    """The angles of one batch's positions: cosines and signed sines, each [tokens, 1, 2, head_dim / 2]."""

    cos: Tensor
    sin: Tensor

    @classmethod
    def of(cls, positions: Tensor, frequencies: Tensor) -> "Rotation":
        angles = torch.outer(positions.float(), frequencies)
        cos, sin = angles.cos(), angles.sin()
        return cls(torch.stack([cos, cos], dim=1)[:, None], torch.stack([-sin, sin], dim=1)[:, None])

    def turn_(self, heads: Tensor) -> None:
        """Turns float32 [tokens, heads, head_dim] in place; the two halves of a head are its pairs."""
        if turned(heads, self.cos, self.sin):
            return
        halves = heads.view(*heads.shape[:-1], 2, -1)
        swapped = halves.flip(-2)
        halves.mul_(self.cos).addcmul_(swapped, self.sin)


def swiglu(both: Tensor) -> Tensor:
    """[rows, 2 * size] -> [rows, size] of the same type: silu of the first half, times the second."""
    made = gated(both)
    if made is not None:
        return made
    gate, up = both.chunk(2, dim=-1)
    return silu(gate).mul_(up)


def _scaled_as_llama3(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    wavelengths = 2 * math.pi / frequencies
    turns = scaling.original_max_position / wavelengths
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return kept * frequencies + (1 - kept) * frequencies / scaling.factor
