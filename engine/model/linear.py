"""Matrices in the form in which this machine multiplies them fastest.

Knows number formats and PyTorch's kernels. Must not know layers, names or files. What a matrix was made from is not
kept: each weight is in memory once.
"""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

# The kernels of packed matrices reach memory's speed with four rows, not with one.
LEAST_ROWS = 4
# Up to so many rows, four-bit products are faster than packed ones; then those are limited by memory no more.
_MOST_FOUR_BIT_ROWS = 4
# PyTorch's four-bit kernel wants matrices of whole tiles, and takes the middle of 0 to 15 as its zero.
_TILE, _MIDDLE = 32, 8
FOUR_BIT_GROUP = 32
# The number of rows that packing is told to expect: any gives the same layout where it was tried.
_EXPECTED_ROWS = 256


@dataclass(frozen=True, slots=True)
class Dense:
    """[out, in] as it is."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, inputs: Tensor) -> Tensor:
        """[rows, in] of any float type -> [rows, out] of the weight's."""
        return linear(inputs.to(self.weight.dtype), self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Packed:
    """Reordered into oneDNN's blocks once: else each product on a CPU would reorder it again."""

    weight: Tensor
    bias: Tensor | None
    dtype: torch.dtype

    def __call__(self, inputs: Tensor) -> Tensor:
        """[rows, in] of any float type -> [rows, out] of `dtype`."""
        num_rows = len(inputs)
        inputs = inputs.to(self.dtype)
        if num_rows < LEAST_ROWS:
            inputs = pad(inputs, (0, 0, 0, LEAST_ROWS - num_rows))
        product: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, self.weight, self.bias, "none", [], "")
        return product if num_rows >= LEAST_ROWS else product[:num_rows]


@dataclass(frozen=True, slots=True)
class FourBitMatrix:
    """value = nibble * scale + minimum: [out, in] of 0 to 15, and for each group of 32 along a row a scale and a
    minimum, [out, in / 32] float32."""

    nibbles: Tensor
    scales: Tensor
    minima: Tensor


@dataclass(frozen=True, slots=True)
class FourBit:
    """The checkpoint's own four bits a weight. Computes in bfloat16. `dense` is the same matrix for many rows, if
    memory is to be spent on it."""

    packed: Tensor
    scales_and_zeros: Tensor
    bias: Tensor | None
    dense: "Linear | None"

    def __call__(self, inputs: Tensor) -> Tensor:
        """[rows, in] of any float type -> [rows, out] bfloat16."""
        if self.dense is not None and len(inputs) > _MOST_FOUR_BIT_ROWS:
            return self.dense(inputs)
        product: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            inputs.to(torch.bfloat16).contiguous(), self.packed, FOUR_BIT_GROUP, self.scales_and_zeros
        )
        return product if self.bias is None else product + self.bias


Linear = Dense | Packed | FourBit


def four_bit_linear(matrix: FourBitMatrix, bias: Tensor | None, dense: Linear | None) -> FourBit:
    """Raises RuntimeError where PyTorch lacks the kernel."""
    zeros = matrix.minima + _MIDDLE * matrix.scales
    # [groups, out, 2]
    scales_and_zeros = torch.stack([matrix.scales, zeros], dim=-1).transpose(0, 1).contiguous().bfloat16()
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(matrix.nibbles.int(), 1)
    return FourBit(packed, scales_and_zeros, bias, dense)


def can_be_four_bit(matrix: FourBitMatrix) -> bool:
    """Whether the kernel takes a matrix of these sizes."""
    return all(size % _TILE == 0 for size in matrix.nibbles.shape)


def linear_of(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """From [out, in] on the device where it is to be used, in the dtype to compute in."""
    if weight.device.type == "cpu" and _can_pack(weight.dtype):
        # Packed tensors cannot be inference tensors.
        with torch.inference_mode(False), torch.no_grad():
            packed = torch.ops.mkldnn._reorder_linear_weight(weight, _EXPECTED_ROWS)
        return Packed(packed, bias, weight.dtype)
    return Dense(weight, bias)


@cache
def _can_pack(dtype: torch.dtype) -> bool:
    """Whether this PyTorch and this CPU have the kernels: tried once, on a small matrix."""
    try:
        with torch.no_grad():
            packed = torch.ops.mkldnn._reorder_linear_weight(torch.eye(32, dtype=dtype), _EXPECTED_ROWS)
            product = Packed(packed, None, dtype)(torch.ones(2, 32, dtype=dtype))
        return bool((product == 1).all())
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
