import struct
from pathlib import Path
from random import Random

import numpy as np
import pytest

from engine.model.fields import ModelError
from engine.model.gguf import GgufFile, find_gguf
from engine.model.weights import WeightFileError
from tests.engine.model import gguf_writer as writer
from tests.engine.model.gguf_writer import Scalar, Stored, write_gguf

METADATA = {
    "u8": Scalar("u8", 255),
    "i8": Scalar("i8", -1),
    "u16": Scalar("u16", 65535),
    "i16": Scalar("i16", -2),
    "u32": Scalar("u32", 4_000_000_000),
    "i32": Scalar("i32", -3),
    "f32": Scalar("f32", 0.5),
    "yes": Scalar("bool", True),
    "u64": Scalar("u64", 1 << 63),
    "i64": Scalar("i64", -4),
    "f64": Scalar("f64", 0.1),
    "text": "wörld",
    "words": ["a", "", "ç"],
    "numbers": [1, 2, 3],
    "none": [],
}


def small_file(path: Path) -> Path:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    return write_gguf(path, METADATA, {"a": writer.f32(values), "b": writer.f16(values)})


@pytest.mark.parametrize("version", [2, 3])
def test_metadata_of_every_type_is_read(tmp_path: Path, version: int) -> None:
    file = GgufFile.open(write_gguf(tmp_path / "m.gguf", METADATA, {}, version))
    plain = {key: value for key, value in file.metadata.items() if not isinstance(value, np.ndarray)}
    wanted = {key: v.value if isinstance(v, Scalar) else v for key, v in METADATA.items()}
    assert plain == {key: v for key, v in wanted.items() if not isinstance(v, list)} | {"words": ("a", "", "ç")}
    assert np.array_equal(file.metadata["numbers"], [1, 2, 3])
    assert np.array_equal(file.metadata["none"], [])
    assert repr(file) == "<GgufFile m.gguf 15 keys 0 tensors>"


@pytest.mark.parametrize("alignment", [8, 32, 64])
def test_plain_floats_come_back_as_written(tmp_path: Path, alignment: int) -> None:
    values = np.array([[0.0, -1.5, 2.25], [1e-3, 65504.0, -0.0]], np.float32)
    halves = values.astype(np.float16).astype(np.float32)
    wide = np.array([[1.0, -2.5], [3e38, 1e-30]], np.float32)
    bfloats = (wide.view(np.uint32) & 0xFFFF0000).view(np.float32)
    tensors = {"f32": writer.f32(values), "f16": writer.f16(halves), "bf16": writer.bf16(bfloats)}
    path = write_gguf(tmp_path / "m.gguf", {"general.alignment": alignment}, tensors, alignment=alignment)
    file = GgufFile.open(path)
    for name, wanted in {"f32": values, "f16": halves, "bf16": bfloats}.items():
        read = file.read(name)
        assert read.dtype == np.float32
        assert np.array_equal(read, wanted)


def test_q8_0_blocks_are_scaled_signed_bytes(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    signed = random.integers(-128, 128, (4, 64)).astype(np.int8)
    scales = random.normal(size=8).astype(np.float16)
    blocks = zip(scales, signed.reshape(-1, 32), strict=True)
    content = b"".join(scale.tobytes() + block.tobytes() for scale, block in blocks)
    file = GgufFile.open(write_gguf(tmp_path / "m.gguf", {}, {"w": Stored(8, (4, 64), content)}))
    wanted = signed.astype(np.float32) * np.repeat(scales.astype(np.float32), 32).reshape(4, 64)
    assert np.array_equal(file.read("w"), wanted)


@pytest.mark.parametrize("kind", [2, 3])
def test_4_bit_blocks_hold_low_nibbles_first(tmp_path: Path, kind: int) -> None:
    stored, wanted = writer.random_q4(kind, (3, 64), np.random.default_rng(kind))
    file = GgufFile.open(write_gguf(tmp_path / "m.gguf", {}, {"w": stored}))
    assert np.allclose(file.read("w"), wanted, rtol=1e-6, atol=1e-6)


def test_what_is_read_outlives_the_file_object(tmp_path: Path) -> None:
    values = GgufFile.open(small_file(tmp_path / "m.gguf")).read("a")
    values += 1
    assert values.sum() == 21


def test_unsupported_type_is_named_with_its_tensor(tmp_path: Path) -> None:
    tensors = {"blk.0.w": Stored(12, (1, 256), b"\0" * 144), "odd": Stored(99, (1,), b"\0")}
    file = GgufFile.open(write_gguf(tmp_path / "m.gguf", {}, tensors))
    with pytest.raises(WeightFileError, match=r"tensor blk\.0\.w has type Q4_K; supported are F32, F16"):
        file.read("blk.0.w")
    with pytest.raises(WeightFileError, match="tensor odd has type number 99"):
        file.read("odd")


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = small_file(tmp_path / "m.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in range(len(whole)):
        cut.write_bytes(whole[:length])
        with pytest.raises(WeightFileError):
            GgufFile.open(cut)


def test_random_damage_never_causes_another_error(tmp_path: Path) -> None:
    random = Random(7)
    whole = small_file(tmp_path / "m.gguf").read_bytes()
    damaged = tmp_path / "damaged.gguf"
    num_refused = 0
    for _ in range(1500):
        content = bytearray(whole)
        for _ in range(random.randint(1, 3)):
            content[random.randrange(len(content))] = random.choice([0, 1, 7, 8, 9, 0x7F, 0x80, 0xFF])
        damaged.write_bytes(content)
        try:
            file = GgufFile.open(damaged)
            for name in file.tensors:
                file.read(name)
        except WeightFileError:
            num_refused += 1
    assert 100 < num_refused < 1500


def header(num_tensors: int = 0, num_entries: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_entries)


def entry(dimensions: tuple[int, ...], kind: int = 0, offset: int = 0, name: str = "w") -> bytes:
    shape = b"".join(struct.pack("<Q", size) for size in dimensions)
    return writer.text(name) + struct.pack("<I", len(dimensions)) + shape + struct.pack("<IQ", kind, offset)


HUGE = 1 << 63
HOSTILE = {
    "number of tensors": header(num_tensors=HUGE),
    "number of metadata entries": header(num_entries=HUGE),
    "length of a metadata key": header(num_entries=1) + struct.pack("<Q", HUGE) + b"k" * 8,
    "length of key": header(num_entries=1) + writer.text("key") + struct.pack("<IIQ", 9, 8, HUGE),
    "length of big": header(num_entries=1) + writer.text("big") + struct.pack("<IIQ", 9, 12, 1 << 61),
    "unsupported value type 9": header(num_entries=1) + writer.text("k") + struct.pack("<IIQ", 9, 9, 1),
    "unknown value type 13": header(num_entries=1) + writer.text("k") + struct.pack("<IQ", 13, 1),
    "not UTF-8": header(num_entries=1) + struct.pack("<Q", 2) + b"\xff\xfe" + b"\0" * 12,
    "'k' appears twice": header(num_entries=2) + 2 * (writer.text("k") + struct.pack("<IB", 0, 1)),
    "alignment is not a power": header(num_entries=1) + writer.text("general.alignment") + struct.pack("<II", 4, 24),
    "dimensions": header(num_tensors=1) + entry((1, 1, 1, 1, 1)),
    "empty dimension": header(num_tensors=1) + entry((4, 0)),
    "past the end": header(num_tensors=1) + entry((HUGE, HUGE, HUGE, HUGE)),
    "ends at byte": header(num_tensors=1) + entry((4,), offset=1 << 62),
    "not a multiple of 32": header(num_tensors=1) + entry((1,), offset=4) + b"\0" * 64,
    "not whole Q8_0 blocks": header(num_tensors=1) + entry((48, 2), kind=8) + b"\0" * 200,
    "tensor w appears twice": header(num_tensors=2) + 2 * entry((1,)) + b"\0" * 64,
    "version 1 is": header(version=1),
    "big-endian": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
    "not a GGUF file": b"PK\3\4" + b"\0" * 40,
    "too short": b"GG",
}


@pytest.mark.parametrize("reason", HOSTILE)
def test_hostile_file_is_refused_with_its_reason(tmp_path: Path, reason: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(HOSTILE[reason])
    with pytest.raises(WeightFileError, match=reason) as caught:
        GgufFile.open(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(WeightFileError, match=r"absent\.gguf: No such file"):
        GgufFile.open(tmp_path / "absent.gguf")


def test_a_path_means_its_only_gguf(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no such file"):
        find_gguf(tmp_path / "absent")
    with pytest.raises(ModelError, match=r"no safetensors and 0 \.gguf"):
        find_gguf(tmp_path)
    file = small_file(tmp_path / "m.gguf")
    assert find_gguf(tmp_path) == find_gguf(file) == file
    small_file(tmp_path / "n.gguf")
    with pytest.raises(ModelError, match=r"2 \.gguf files"):
        find_gguf(tmp_path)
    (tmp_path / "model.safetensors").touch()
    assert find_gguf(tmp_path) is None
    with pytest.raises(ModelError, match=r"neither a \.gguf file"):
        find_gguf(tmp_path / "model.safetensors")
