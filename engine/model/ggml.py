"""ggml's number formats: blocks of bytes to float32.

Knows how each format packs its values. Must not know files, tensors' names or torch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

# By type number, for error messages; a dash stands for a number that ggml has withdrawn.
_TYPE_NAMES = (
    "F32 F16 Q4_0 Q4_1 - - Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ2_XXS IQ2_XS IQ3_XXS IQ1_S "
    "IQ4_NL IQ3_S IQ2_S IQ4_XS I8 I16 I32 I64 F64 IQ1_M BF16"
)


@dataclass(frozen=True, slots=True)
class Number:
    """Blocks of `block_bytes` hold `block_elements` values each; `decode` takes [blocks, bytes], and so does
    `take_apart`, where the values are codes of four or eight bits."""

    name: str
    block_elements: int
    block_bytes: int
    decode: Callable[[Bytes], Floats]
    take_apart: Callable[[Bytes], "Blocks"] | None = None


@dataclass(frozen=True, slots=True)
class Blocks:
    """[blocks, 32] codes, each below 2 ** bits, and [blocks, 1] float32: value = code * scale + minimum."""

    bits: int
    codes: Bytes
    scales: Floats
    minima: Floats


def number_of(ggml_type: int) -> Number | None:
    """None for a type that is not supported."""
    return _NUMBERS.get(ggml_type)


def supported_names() -> list[str]:
    return [number.name for number in _NUMBERS.values()]


def type_name(ggml_type: int) -> str:
    names = _TYPE_NAMES.split()
    return names[ggml_type] if ggml_type < len(names) else f"number {ggml_type}"


def _float16(raw: Bytes) -> Floats:
    return np.ascontiguousarray(raw).view("<f2").astype(np.float32)


def _decode_float32(raw: Bytes) -> Floats:
    return np.array(raw).view("<f4").astype(np.float32, copy=False)


def _decode_bfloat16(raw: Bytes) -> Floats:
    # A bfloat16 is the upper half of a float32.
    return (np.array(raw).view("<u2").astype(np.uint32) << 16).view(np.float32)


def _decode_q8_0(blocks: Bytes) -> Floats:
    """float16 scale, 32 signed bytes."""
    return np.ascontiguousarray(blocks[:, 2:]).view(np.int8) * _float16(blocks[:, :2])


def _take_apart_q8_0(blocks: Bytes) -> Blocks:
    scales = _float16(blocks[:, :2])
    return Blocks(8, np.bitwise_xor(blocks[:, 2:], np.uint8(0x80)), scales, -128 * scales)


def _decode_four_bits(take_apart: Callable[[Bytes], Blocks], blocks: Bytes) -> Floats:
    parts = take_apart(blocks)
    values = parts.codes.astype(np.float32)
    values *= parts.scales
    values += parts.minima
    return values


def _take_apart_q4_0(blocks: Bytes) -> Blocks:
    """float16 scale, 32 nibbles; value = (nibble - 8) * scale."""
    scales = _float16(blocks[:, :2])
    return Blocks(4, _nibbles(blocks[:, 2:]), scales, -8 * scales)


def _take_apart_q4_1(blocks: Bytes) -> Blocks:
    """float16 scale, float16 minimum, 32 nibbles; value = nibble * scale + minimum."""
    return Blocks(4, _nibbles(blocks[:, 4:]), _float16(blocks[:, :2]), _float16(blocks[:, 2:4]))


def _nibbles(packed: Bytes) -> Bytes:
    """The low halves of a block's 16 bytes are its first 16 values, the high halves the last 16."""
    return np.concatenate([packed & 0x0F, packed >> 4], axis=1)


def _four_bits(name: str, block_bytes: int, take_apart: Callable[[Bytes], Blocks]) -> Number:
    return Number(name, 32, block_bytes, partial(_decode_four_bits, take_apart), take_apart)


_NUMBERS = {
    0: Number("F32", 1, 4, _decode_float32),
    1: Number("F16", 1, 2, _float16),
    2: _four_bits("Q4_0", 18, _take_apart_q4_0),
    3: _four_bits("Q4_1", 20, _take_apart_q4_1),
    8: Number("Q8_0", 32, 34, _decode_q8_0, _take_apart_q8_0),
    30: Number("BF16", 1, 2, _decode_bfloat16),
}
