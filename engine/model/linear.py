"""Matrices in the form in which this machine multiplies them fastest.

Knows number formats and PyTorch's kernels. Must not know layers, names or files. What a matrix was made from is not
kept: each weight is in memory once.
"""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from engine.model.coded import Coded, FourBit

# The kernels of packed matrices reach memory's speed with four rows, not with one.
LEAST_ROWS = 4
# Up to so many rows, products with matrices of few bits are the faster ones in bfloat16; then memory limits no more.
_FEW_ROWS = 4
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
class BySize:
    """The same matrix twice: fast for few rows, and for many."""

    few: Coded | FourBit
    many: Dense | Packed

    def __call__(self, inputs: Tensor) -> Tensor:
        """[rows, in] of any float type -> [rows, out] of one."""
        return self.few(inputs) if len(inputs) <= _FEW_ROWS else self.many(inputs)


Linear = Dense | Packed | Coded | FourBit | BySize


def linear_of(weight: Tensor, bias: Tensor | None = None) -> Dense | Packed:
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
