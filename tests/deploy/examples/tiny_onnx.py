"""A model.onnx of one table: each token's state is its row. Written as protobuf by hand, as there is nothing to
install that would only do this."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_INT64, _FLOAT = 7, 1


def write_onnx(file: Path, table: NDArray[np.float32]) -> None:
    """`table` is [tokens, dimensions]; inputs input_ids and attention_mask, [texts, tokens] each."""
    sizes = b"".join(_number(1, size) for size in table.shape)
    weights = sizes + _number(2, _FLOAT) + _text(8, "table") + _part(9, table.tobytes())
    node = _text(1, "table") + _text(1, "input_ids") + _text(2, "states") + _text(4, "Gather")
    inputs = b"".join(_part(11, _value(name, _INT64, ["texts", "tokens"])) for name in ("input_ids", "attention_mask"))
    output = _part(12, _value("states", _FLOAT, ["texts", "tokens", "dimensions"]))
    graph = _part(1, node) + _text(2, "tiny") + _part(5, weights) + inputs + output
    file.write_bytes(_number(1, 8) + _part(7, graph) + _part(8, _text(1, "") + _number(2, 17)))


def _value(name: str, kind: int, axes: list[str]) -> bytes:
    shape = b"".join(_part(1, _text(2, axis)) for axis in axes)
    return _text(1, name) + _part(2, _part(1, _number(1, kind) + _part(2, shape)))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _text(field: int, value: str) -> bytes:
    return _part(field, value.encode())


def _part(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value % 128 + 128]) + _varint(value // 128)
