"""A memory-mapped reader of GGUF files, versions 2 and 3, little-endian.

Knows the container: metadata, tensor table, where each tensor's blocks lie. Must not know what any key or tensor
means, nor torch. The file is not trusted: each count, offset and size is checked
against the bytes that are there before anything is allocated for it.
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from engine.model.fields import ModelError
from engine.model.ggml import Bytes, Floats, Number, number_of, supported_names, type_name
from engine.model.weights import WeightFileError

# Arrays of strings are tuples; arrays of numbers stay numpy arrays, so that they cost what they cost on disk.
MetaValue = int | float | bool | str | tuple[str, ...] | NDArray[Any]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4
_SMALLEST_ENTRY = 8 + 4  # a metadata entry or tensor: at least a name's length and a type or dimension count

_STRING, _ARRAY = 8, 9
# Metadata value type -> struct format; numpy reads the same letters.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One row of the tensor table. `shape` is outermost dimension first; `offset` is in bytes from the start
    of the file."""

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    offset: int

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)


@dataclass(eq=False, slots=True)
class GgufFile:
    """An open file. The map lives as long as the object; `read` copies out of it."""

    path: Path
    metadata: Mapping[str, MetaValue]
    tensors: Mapping[str, TensorEntry]
    _content: Bytes

    @classmethod
    def open(cls, path: Path) -> Self:
        """Reads metadata and tensor table, no weights. Raises WeightFileError."""
        content = _map(path)
        cursor = _Cursor(path, content.data, 0)
        num_tensors, num_entries = _read_header(cursor)
        metadata = _read_metadata(cursor, num_entries)
        tensors = _read_tensor_table(cursor, num_tensors, _alignment(cursor, metadata))
        return cls(path, metadata, tensors, content)

    def read(self, name: str) -> Floats:
        """The tensor `name`, dequantised to a new float32 array of its shape."""
        return self.number(name).decode(self.stored(name)).reshape(self.tensors[name].shape)

    def rows(self, name: str, indices: NDArray[np.int64]) -> Floats:
        """Some rows of a matrix, dequantised to a new float32 array."""
        num_rows, size = self.tensors[name].shape
        blocks = self.stored(name).reshape(num_rows, -1)[indices]
        number = self.number(name)
        return number.decode(blocks.reshape(-1, number.block_bytes)).reshape(len(indices), size)

    def stored(self, name: str) -> Bytes:
        """[blocks, bytes] as in the file: a view of the map."""
        entry, number = self.tensors[name], self.number(name)
        size = entry.num_elements // number.block_elements * number.block_bytes
        return self._content[entry.offset : entry.offset + size].reshape(-1, number.block_bytes)

    def number(self, name: str) -> Number:
        """The format of the tensor's values. Raises WeightFileError if it is not one of ours."""
        kind = self.tensors[name].ggml_type
        number = number_of(kind)
        if number is None:
            raise WeightFileError(
                f"{self.path}: tensor {name} has type {type_name(kind)}; supported are {', '.join(supported_names())}"
            )
        return number

    def __repr__(self) -> str:
        return f"<GgufFile {self.path.name} {len(self.metadata)} keys {len(self.tensors)} tensors>"


def find_gguf(path: Path) -> Path | None:
    """The GGUF file that `path` means: itself, or the only one in that folder; None for a folder with
    safetensors. Raises ModelError when there is nothing to load or a choice to make."""
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelError(f"{path}: neither a .gguf file nor a folder with a model")
        return path
    if not path.is_dir():
        raise ModelError(f"{path}: no such file or folder")
    if any(path.glob("*.safetensors")):
        return None
    found = sorted(path.glob("*.gguf"))
    if len(found) != 1:
        raise ModelError(f"{path}: the folder has no safetensors and {len(found)} .gguf files; name one file")
    return found[0]


def _map(path: Path) -> Bytes:
    try:
        if path.stat().st_size < len(_MAGIC):
            raise WeightFileError(f"{path}: too short to be a GGUF file")
        return np.memmap(path, dtype=np.uint8, mode="r")
    except OSError as error:
        raise WeightFileError(f"{path}: {error.strerror}") from None


@dataclass(eq=False, slots=True)
class _Cursor:
    """Walks the file from its start; refuses to step past the end."""

    path: Path
    content: memoryview
    position: int

    @property
    def remaining(self) -> int:
        return len(self.content) - self.position

    def take(self, num_bytes: int, what: str) -> memoryview:
        if num_bytes > self.remaining:
            raise self.damaged(f"{what} needs {num_bytes} bytes, {self.remaining} are left")
        self.position += num_bytes
        return self.content[self.position - num_bytes : self.position]

    def scalar(self, letter: str, what: str) -> Any:
        layout = f"<{letter}"
        return struct.unpack(layout, self.take(struct.calcsize(layout), what))[0]

    def count(self, smallest_item: int, what: str) -> int:
        """A count of items of at least `smallest_item` bytes each that still have to come."""
        count: int = self.scalar("Q", what)
        if count * smallest_item > self.remaining:
            raise self.damaged(f"{what} is {count}, more than the file can hold")
        return count

    def text(self, what: str) -> str:
        raw = self.take(self.count(1, f"the length of {what}"), what)
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError:
            raise self.damaged(f"{what} is not UTF-8") from None

    def damaged(self, reason: str) -> WeightFileError:
        return WeightFileError(f"{self.path}: {reason} (at byte {self.position})")


def _read_header(cursor: _Cursor) -> tuple[int, int]:
    """-> (tensors, metadata entries)."""
    if bytes(cursor.take(len(_MAGIC), "the magic")) != _MAGIC:
        raise WeightFileError(f"{cursor.path}: not a GGUF file (it does not begin with GGUF)")
    version = cursor.scalar("I", "the version")
    if version not in _VERSIONS:
        kind = " (a big-endian file?)" if version >= 1 << 16 else ""
        raise WeightFileError(f"{cursor.path}: GGUF version {version}{kind} is not supported, only 2 and 3")
    num_tensors = cursor.count(_SMALLEST_ENTRY, "the number of tensors")
    return num_tensors, cursor.count(_SMALLEST_ENTRY, "the number of metadata entries")


def _read_metadata(cursor: _Cursor, num_entries: int) -> dict[str, MetaValue]:
    metadata: dict[str, MetaValue] = {}
    for _ in range(num_entries):
        key = cursor.text("a metadata key")
        if key in metadata:
            raise cursor.damaged(f"metadata key {key!r} appears twice")
        metadata[key] = _read_value(cursor, cursor.scalar("I", f"the type of {key}"), key)
    return metadata


def _read_value(cursor: _Cursor, kind: int, key: str) -> MetaValue:
    if kind in _SCALARS:
        value: int | float | bool = cursor.scalar(_SCALARS[kind], key)
        return value
    if kind == _STRING:
        return cursor.text(key)
    if kind == _ARRAY:
        return _read_array(cursor, cursor.scalar("I", f"the element type of {key}"), key)
    raise cursor.damaged(f"{key} has the unknown value type {kind}")


def _read_array(cursor: _Cursor, kind: int, key: str) -> MetaValue:
    if kind == _STRING:
        length = cursor.count(8, f"the length of {key}")
        return tuple(cursor.text(key) for _ in range(length))
    if kind not in _SCALARS:
        raise cursor.damaged(f"{key} is an array of the unsupported value type {kind}")
    number = np.dtype(f"<{_SCALARS[kind]}")
    length = cursor.count(number.itemsize, f"the length of {key}")
    return np.frombuffer(cursor.take(length * number.itemsize, key), dtype=number).copy()


def _alignment(cursor: _Cursor, metadata: Mapping[str, MetaValue]) -> int:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20 or alignment & (alignment - 1):
        raise WeightFileError(f"{cursor.path}: general.alignment is not a power of two up to 1 MiB")
    return alignment


def _read_tensor_table(cursor: _Cursor, num_tensors: int, alignment: int) -> dict[str, TensorEntry]:
    relative = [_read_tensor_entry(cursor, alignment) for _ in range(num_tensors)]
    start = cursor.position + -cursor.position % alignment
    tensors: dict[str, TensorEntry] = {}
    for entry in relative:
        if entry.name in tensors:
            raise WeightFileError(f"{cursor.path}: tensor {entry.name} appears twice")
        placed = TensorEntry(entry.name, entry.shape, entry.ggml_type, start + entry.offset)
        _check_inside(cursor, placed)
        tensors[entry.name] = placed
    return tensors


def _read_tensor_entry(cursor: _Cursor, alignment: int) -> TensorEntry:
    """An entry whose offset still counts from the start of the tensor section."""
    name = cursor.text("a tensor's name")
    num_dimensions = cursor.scalar("I", f"the number of dimensions of {name}")
    if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
        raise cursor.damaged(f"tensor {name} has {num_dimensions} dimensions")
    innermost_first = [cursor.scalar("Q", f"the shape of {name}") for _ in range(num_dimensions)]
    if 0 in innermost_first:
        raise cursor.damaged(f"tensor {name} has an empty dimension")
    ggml_type = cursor.scalar("I", f"the type of {name}")
    offset = cursor.scalar("Q", f"the offset of {name}")
    if offset % alignment:
        raise cursor.damaged(f"the offset of tensor {name} is not a multiple of {alignment}")
    return TensorEntry(name, tuple(reversed(innermost_first)), ggml_type, offset)


def _check_inside(cursor: _Cursor, entry: TensorEntry) -> None:
    number = number_of(entry.ggml_type)
    if number is None:
        return  # Its size is not known; it is refused by name when it is read.
    if entry.shape[-1] % number.block_elements:
        raise WeightFileError(
            f"{cursor.path}: the rows of tensor {entry.name} ({entry.shape[-1]}) are not whole "
            f"{number.name} blocks of {number.block_elements}"
        )
    end = entry.offset + entry.num_elements // number.block_elements * number.block_bytes
    if end > len(cursor.content):
        raise WeightFileError(
            f"{cursor.path}: tensor {entry.name} ends at byte {end}, past the end of the file "
            f"({len(cursor.content)}): the file is cut short or damaged"
        )
