"""Chained block hashes of token ids: what router and engine must agree on byte for byte.

Knows tokens, block sizes and what must keep equal tokens apart. Knows nothing of models, replicas, caches or I/O.
"""

import sys
from array import array
from collections.abc import Sequence
from struct import Struct, iter_unpack

from xxhash import xxh3_64_intdigest

# The Mooncake and Dynamo convention: other indexers that follow it compute the same hashes.
SEED = 1337
# Identity and extra keys are hashed under another seed, so that no token block can equal them.
KEY_SEED = 1338
TOKEN_BYTES = 4

_pair = Struct("<QQ").pack
_length = Struct("<I").pack


def block_hashes(
    tokens: Sequence[int] | bytes | bytearray | memoryview,
    block_size: int,
    *,
    adapter: str | None = None,
    salt: str | None = None,
    extra_keys: Sequence[tuple[bytes, ...] | None] | None = None,
    parent: int | None = None,
) -> list[int]:
    """One 64-bit hash per full block of `block_size` tokens; a partial last block has none.

    `tokens` are ids of 0..2**32-1: any sequence of ints (fastest: `array("I")`), or `bytes`, `bytearray` or a byte
    `memoryview` that already holds them as little-endian u32.

    With no adapter, salt or extra keys, this is the plain chain that others compute too (XXH3-64, seed 1337):

        local_i = XXH3(block i as little-endian u32)
        seq_0   = local_0
        seq_i   = XXH3(seq_{i-1} || local_i)         both as little-endian u64

    `adapter` and `salt` (either may be None, which differs from "") give a root that enters before block 0, so that
    every block of the chain differs. `k(x)` below is the length of `x` in bytes as little-endian u32, then `x`; text
    is UTF-8 (a lone surrogate as three bytes); KEYED is XXH3-64 with seed 1338:

        root    = KEYED("a" || k(adapter) || "s" || k(salt))      the part of a None is left out
        seq_0   = XXH3(root || local_0)

    `extra_keys` has one entry per full block (more are ignored): the keys of what the block holds beside its tokens
    (an image's content hash, with its offset where that matters), in order; None or () for a block without. It
    changes that block and all after it:

        local_i = KEYED(local_i || k(key) for each key)

    `parent` continues a chain: the hash of the block before these tokens. Adapter and salt are in it already, and
    what is said of them here does not count.

    Raises ValueError naming the argument: a block size below 1, a token out of range, a buffer that is no whole
    number of u32, fewer extra keys than full blocks.
    """
    if block_size < 1:
        raise ValueError(f"block_size must be at least 1, not {block_size}")
    buffer = _little_endian(tokens)
    step = block_size * TOKEN_BYTES
    blocks = iter_unpack(f"{step}s", buffer[: len(buffer) // step * step])
    hashes = [xxh3_64_intdigest(block, SEED) for (block,) in blocks]
    if extra_keys is not None:
        hashes = _with_extra_keys(hashes, extra_keys)
    return _chained(hashes, _root(adapter, salt) if parent is None else parent)


def _little_endian(tokens: Sequence[int] | bytes | bytearray | memoryview) -> bytes:
    if isinstance(tokens, (bytes, bytearray)) or (isinstance(tokens, memoryview) and tokens.itemsize == 1):
        if len(tokens) % TOKEN_BYTES:
            raise ValueError(f"tokens: a buffer of {len(tokens)} bytes is no whole number of 4-byte token ids")
        return bytes(tokens)
    try:
        ids = tokens if isinstance(tokens, array) and tokens.typecode == "I" else array("I", tokens)
    except (OverflowError, TypeError) as error:
        raise ValueError(f"tokens: each id must be an integer of 0..2**32-1: {error}") from error
    if sys.byteorder == "big":
        ids = ids[:]
        ids.byteswap()
    return ids.tobytes()


def _with_extra_keys(hashes: list[int], extra_keys: Sequence[tuple[bytes, ...] | None]) -> list[int]:
    if len(extra_keys) < len(hashes):
        raise ValueError(f"extra_keys: {len(extra_keys)} entries for {len(hashes)} full blocks")
    return [_keyed(local, keys) if keys else local for local, keys in zip(hashes, extra_keys, strict=False)]


def _keyed(local: int, keys: tuple[bytes, ...]) -> int:
    return xxh3_64_intdigest(local.to_bytes(8, "little") + b"".join(map(_prefixed, keys)), KEY_SEED)


def _root(adapter: str | None, salt: str | None) -> int | None:
    if adapter is None and salt is None:
        return None
    adapter_part = b"" if adapter is None else b"a" + _prefixed(adapter.encode("utf-8", "surrogatepass"))
    salt_part = b"" if salt is None else b"s" + _prefixed(salt.encode("utf-8", "surrogatepass"))
    return xxh3_64_intdigest(adapter_part + salt_part, KEY_SEED)


def _prefixed(key: bytes) -> bytes:
    return _length(len(key)) + key


def _chained(hashes: list[int], root: int | None) -> list[int]:
    """In place, in one loop without a call of ours: long new prompts have thousands."""
    digest, pair, previous = xxh3_64_intdigest, _pair, root
    for index, local in enumerate(hashes):
        hashes[index] = previous = local if previous is None else digest(pair(previous, local), SEED)
    return hashes
