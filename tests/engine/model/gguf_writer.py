"""Writes small GGUF files for tests. Knows the format from its specification, not from the reader under test."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

_LETTERS = {"u8": "B", "i8": "b", "u16": "H", "i16": "h", "u32": "I", "i32": "i"}
_LETTERS |= {"f32": "f", "bool": "?", "u64": "Q", "i64": "q", "f64": "d"}
_NUMBERS = {"u8": 0, "i8": 1, "u16": 2, "i16": 3, "u32": 4, "i32": 5, "f32": 6, "bool": 7}
_NUMBERS |= {"string": 8, "array": 9, "u64": 10, "i64": 11, "f64": 12}


@dataclass(frozen=True, slots=True)
class Scalar:
    """A metadata value of a stated type; plain ints, floats, bools and strings get u32, f32, bool and string."""

    kind: str
    value: object


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor as it lies in the file: `shape` outermost dimension first."""

    ggml_type: int
    shape: tuple[int, ...]
    content: bytes


def write_gguf(
    path: Path,
    metadata: Mapping[str, object],
    tensors: Mapping[str, Stored],
    version: int = 3,
    alignment: int = 32,
) -> Path:
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    for key, value in metadata.items():
        head += text(key) + _typed(value)
    body = b""
    for name, tensor in tensors.items():
        body += b"\0" * (-len(body) % alignment)
        head += text(name) + struct.pack("<I", len(tensor.shape))
        head += b"".join(struct.pack("<Q", size) for size in reversed(tensor.shape))
        head += struct.pack("<IQ", tensor.ggml_type, len(body))
        body += tensor.content
    path.write_bytes(head + b"\0" * (-len(head) % alignment) + body)
    return path


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def _typed(value: object) -> bytes:
    match value:
        case Scalar(kind, inner):
            return struct.pack(f"<I{_LETTERS[kind]}", _NUMBERS[kind], inner)
        case bool():
            return _typed(Scalar("bool", value))
        case int():
            return _typed(Scalar("u32", value))
        case float():
            return _typed(Scalar("f32", value))
        case str():
            return struct.pack("<I", _NUMBERS["string"]) + text(value)
        case list():
            items = [_typed(item) for item in value]
            item_kind = items[0][:4] if items else struct.pack("<I", _NUMBERS["u32"])
            content = b"".join(item[4:] for item in items)
            return struct.pack("<I", _NUMBERS["array"]) + item_kind + struct.pack("<Q", len(items)) + content
    raise TypeError(value)


def f32(values: Floats) -> Stored:
    return Stored(0, values.shape, values.astype("<f4").tobytes())


def f16(values: Floats) -> Stored:
    return Stored(1, values.shape, values.astype("<f2").tobytes())


def bf16(values: Floats) -> Stored:
    """Cut off, not rounded: the tests use values that fit."""
    return Stored(30, values.shape, (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes())


def q8_0(values: Floats) -> Stored:
    content = b""
    for block in values.reshape(-1, 32):
        scale = np.float16(np.abs(block).max() / 127)
        content += scale.tobytes() + np.rint(block / np.float32(scale)).astype(np.int8).tobytes()
    return Stored(8, values.shape, content)


def random_q4(kind: int, shape: tuple[int, ...], random: np.random.Generator) -> tuple[Stored, Floats]:
    """A Q4_0 (2) or Q4_1 (3) tensor of random blocks, and its values worked out one at a time."""
    content, values = b"", []
    for _ in range(int(np.prod(shape)) // 32):
        scale, minimum = np.float16(random.normal()), np.float16(random.normal())
        nibbles = [int(nibble) for nibble in random.integers(0, 16, 32)]
        packed = bytes(nibbles[i] | nibbles[i + 16] << 4 for i in range(16))
        content += scale.tobytes() + (minimum.tobytes() if kind == 3 else b"") + packed
        offset = float(minimum) if kind == 3 else -8 * float(scale)
        values += [nibble * float(scale) + offset for nibble in nibbles]
    return Stored(kind, shape, content), np.array(values, np.float32).reshape(shape)
