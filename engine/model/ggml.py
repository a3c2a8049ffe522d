"""ggml's number formats: blocks of bytes to float32.

Knows how each format packs its values. Must not know files, tensors' names or torch.
"""

from collections.abc import Callable
from dataclasses import dataclass

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
    """Blocks of `block_bytes` hold `block_elements` values each; `decode` takes [blocks, bytes]."""

    name: str
    block_elements: int
    block_bytes: int
    decode: Callable[[Bytes], Floats]


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


def _decode_q4_0(blocks: Bytes) -> Floats:
    """float16 scale, 32 nibbles; value = (nibble - 8) * scale."""
    return (_nibbles(blocks[:, 2:]) - np.float32(8)) * _float16(blocks[:, :2])


def _decode_q4_1(blocks: Bytes) -> Floats:
    """float16 scale, float16 minimum, 32 nibbles; value = nibble * scale + minimum."""
    return _nibbles(blocks[:, 4:]) * _float16(blocks[:, :2]) + _float16(blocks[:, 2:4])


def _nibbles(packed: Bytes) -> Floats:
    """The low halves of a block's 16 bytes are its first 16 values, the high halves the last 16."""
    return np.concatenate([packed & 0x0F, packed >> 4], axis=1).astype(np.float32)


_NUMBERS = {
    0: Number("F32", 1, 4, _decode_float32),
    1: Number("F16", 1, 2, _float16),
    2: Number("Q4_0", 32, 18, _decode_q4_0),
    3: Number("Q4_1", 32, 20, _decode_q4_1),
    8: Number("Q8_0", 32, 34, _decode_q8_0),
    30: Number("BF16", 1, 2, _decode_bfloat16),
}
