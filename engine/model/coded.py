"""Matrices that stay in the four or eight bits a weight of their file.

Knows codes, and the two kernels that multiply with them: ours (coded.c), which gives what float32 gives, and PyTorch's,
for four bits, in bfloat16. Must not know layers, names or files.
"""

from ctypes import c_int, c_long, c_void_p
from dataclasses import dataclass
from functools import cache
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from engine.model.compiled import Function, compiled

GROUP = 32
_ARGUMENTS = (c_void_p, c_int, c_void_p, c_void_p, c_long, c_long, c_long, c_int)
# PyTorch's kernel wants matrices of whole tiles, and takes the middle of 0 to 15 as its zero.
_TILE, _MIDDLE = 32, 8
# Ours: so many rows of the matrix lie side by side, of each so many codes together.
_LANES, _QUAD = 16, 4


@dataclass(frozen=True, slots=True)
class Codes:
    """weight = code * scale + minimum: [out, in] uint8, each below 2 ** bits, and for each group of 32 along a row a
    scale and a minimum, [out, in / 32] float32. `bits` is 4 or 8."""

    bits: int
    codes: Tensor
    scales: Tensor
    minima: Tensor

    @classmethod
    def joined(cls, parts: list[Self]) -> Self | None:
        """One below the other; None if they have not as many bits each."""
        if len({part.bits for part in parts}) != 1:
            return None
        columns = zip(*((part.codes, part.scales, part.minima) for part in parts), strict=True)
        return cls(parts[0].bits, *(torch.cat(column) for column in columns))

    def widened(self) -> Tensor:
        """[out, in] float32"""
        scales, minima = (part.repeat_interleave(GROUP, dim=1) for part in (self.scales, self.minima))
        return self.codes * scales + minima


@dataclass(frozen=True, slots=True)
class Coded:
    """Multiplied by our own function, to float32's precision whatever the number of rows."""

    packed: Tensor
    bits: int
    num_outputs: int
    bias: Tensor | None
    multiply: Function

    @classmethod
    def of(cls, codes: Codes, bias: Tensor | None) -> Self | None:
        """None where our function cannot be compiled, or float16 does not hold the scales."""
        multiply = coded_kernel()
        if multiply is None or not (_is_short(codes.scales) and _is_short(codes.minima)):
            return None
        return cls(_packed(codes), codes.bits, len(codes.codes), bias, multiply)

    def __call__(self, inputs: Tensor) -> Tensor:
        """[rows, in] of any float type -> [rows, out] float32."""
        inputs = inputs.float().contiguous()
        num_rows, size = inputs.shape
        outputs = torch.empty(num_rows, self.num_outputs)
        failed = self.multiply(
            self.packed.data_ptr(),
            self.bits,
            inputs.data_ptr(),
            outputs.data_ptr(),
            num_rows,
            size // GROUP,
            self.num_outputs,
            torch.get_num_threads(),
        )
        if failed:
            raise MemoryError(f"no room for {num_rows} rows of {size} inputs")
        return outputs if self.bias is None else outputs.add_(self.bias)


@dataclass(frozen=True, slots=True)
class FourBit:
    """Multiplied by PyTorch's function, in bfloat16: fast for few rows alone."""

    packed: Tensor
    scales_and_zeros: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, codes: Codes, bias: Tensor | None) -> Self | None:
        """None for other than four bits, or sizes that the function does not take. Raises RuntimeError where PyTorch
        lacks it."""
        if codes.bits != 4 or any(size % _TILE for size in codes.codes.shape):
            return None
        zeros = codes.minima + _MIDDLE * codes.scales
        # [groups, out, 2]
        scales_and_zeros = torch.stack([codes.scales, zeros], dim=-1).transpose(0, 1).contiguous().bfloat16()
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.codes.int(), 1)
        return cls(packed, scales_and_zeros, None if bias is None else bias.bfloat16())

    def __call__(self, inputs: Tensor) -> Tensor:
        """[rows, in] of any float type -> [rows, out] bfloat16."""
        product: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            inputs.to(torch.bfloat16).contiguous(), self.packed, GROUP, self.scales_and_zeros
        )
        return product if self.bias is None else product + self.bias


@cache
def coded_kernel() -> Function | None:
    """Our function, if it can be had. Tried once on small matrices: a compiler may be broken too."""
    multiply = compiled("coded.c", "multiply_coded", _ARGUMENTS)
    return multiply if multiply is not None and all(_is_right(multiply, bits) for bits in (4, 8)) else None


def _packed(codes: Codes) -> Tensor:
    """[blocks, groups, bytes], as coded.c tells."""
    num_outputs, size = codes.codes.shape
    num_groups, missing = size // GROUP, -num_outputs % _LANES
    # A scale of nothing counts no code: it becomes one whose exponent the function can add to, and the code nothing.
    counts = codes.scales != 0
    scales = codes.scales.where(counts, 1.0)
    counted = codes.codes * counts.repeat_interleave(GROUP, dim=1)
    quads = pad(counted, (0, 0, 0, missing)).view(-1, _LANES, num_groups, GROUP // _QUAD, _QUAD)
    quads = quads.permute(0, 2, 3, 1, 4).flatten(3)  # [blocks, groups, quads, bytes]
    if codes.bits == 4:
        quads = quads[:, :, 0::2] | quads[:, :, 1::2] << 4
    halves = (
        pad(part, (0, 0, 0, missing)).view(-1, _LANES, num_groups).transpose(1, 2).contiguous().half().view(torch.uint8)
        for part in (scales, codes.minima)
    )
    return torch.cat([quads.flatten(2), *halves], dim=-1)


def _is_short(values: Tensor) -> bool:
    return bool((values.half().float() == values).all())


def _is_right(multiply: Function, bits: int) -> bool:
    codes = torch.arange(24 * 64).view(24, 64).mul(37).remainder(2**bits).to(torch.uint8)
    matrix = Codes(bits, codes, torch.full((24, 2), 0.25), torch.full((24, 2), -1.5))
    inputs = torch.arange(3 * 64).view(3, 64).sin()
    found = Coded(_packed(matrix), bits, len(codes), None, multiply)(inputs)
    return torch.allclose(found, inputs @ matrix.widened().T, rtol=1e-4, atol=1e-3)
