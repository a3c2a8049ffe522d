"""The block hash: known vectors rebuilt from xxhash itself, and what must or must not share a hash."""

import struct
from array import array

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from pointsman.blockhash import block_hashes

tokens = st.lists(st.integers(0, 2**32 - 1), max_size=70)
block_sizes = st.integers(1, 20)
names = st.none() | st.text(max_size=8)


def xxh3(payload: bytes, seed: int = 1337) -> int:
    return xxhash.xxh3_64_intdigest(payload, seed)


def test_the_plain_chain_is_the_mooncake_and_dynamo_convention() -> None:
    local_0 = xxh3(struct.pack("<3I", 1, 2, 3))
    local_1 = xxh3(struct.pack("<3I", 4, 5, 2**32 - 1))
    seq_1 = xxh3(struct.pack("<QQ", local_0, local_1))
    assert block_hashes([1, 2, 3, 4, 5, 2**32 - 1, 9], 3) == [local_0, seq_1]


def test_hashes_of_today_stay_those_of_tomorrow() -> None:
    assert block_hashes(range(5), 2) == [10918435022357402928, 7454852371412049951]


def test_adapter_and_salt_enter_as_a_root_before_the_first_block() -> None:
    local = xxh3(struct.pack("<2I", 7, 8))
    root = xxh3(b"a\x04\0\0\0blue" + b"s\x02\0\0\0xy", 1338)
    assert block_hashes([7, 8], 2, adapter="blue", salt="xy") == [xxh3(struct.pack("<QQ", root, local))]
    root = xxh3(b"s\x02\0\0\0\xc3\xa9", 1338)
    assert block_hashes([7, 8], 2, salt="é") == [xxh3(struct.pack("<QQ", root, local))]


def test_extra_keys_enter_the_hash_of_their_block() -> None:
    local_0, local_1 = xxh3(struct.pack("<I", 7)), xxh3(struct.pack("<I", 8))
    keyed_1 = xxh3(struct.pack("<Q", local_1) + b"\x02\0\0\0ab" + b"\x01\0\0\0c", 1338)
    assert block_hashes([7, 8], 1, extra_keys=[None, (b"ab", b"c")]) == [
        local_0,
        xxh3(struct.pack("<QQ", local_0, keyed_1)),
    ]


@given(tokens, block_sizes, names, names)
def test_only_full_blocks_are_hashed_and_a_prefix_keeps_its_hashes(
    ids: list[int], block_size: int, adapter: str | None, salt: str | None
) -> None:
    hashes = block_hashes(ids, block_size, adapter=adapter, salt=salt)
    assert len(hashes) == len(ids) // block_size
    assert block_hashes(ids + [1] * 40, block_size, adapter=adapter, salt=salt)[: len(hashes)] == hashes


@given(tokens, block_sizes, names, names, st.integers(0, 4))
def test_a_chain_goes_on_from_its_last_block(
    ids: list[int], block_size: int, adapter: str | None, salt: str | None, num_before: int
) -> None:
    whole = block_hashes(ids, block_size, adapter=adapter, salt=salt)
    num_before = min(num_before, len(whole))
    parent = whole[num_before - 1] if num_before else None
    rest = block_hashes(ids[num_before * block_size :], block_size, adapter=adapter, salt=salt, parent=parent)
    assert rest == whole[num_before:]


@given(tokens, block_sizes)
def test_every_form_of_the_same_tokens_hashes_alike(ids: list[int], block_size: int) -> None:
    hashes = block_hashes(ids, block_size)
    packed = struct.pack(f"<{len(ids)}I", *ids)
    forms = [tuple(ids), array("I", ids), array("Q", ids), packed, bytearray(packed), memoryview(packed)]
    assert all(block_hashes(form, block_size) == hashes for form in forms)
    assert block_hashes(memoryview(array("I", ids)), block_size) == hashes


@given(tokens, st.tuples(names, names), st.tuples(names, names))
def test_no_block_is_shared_between_adapters_or_salts(
    ids: list[int], one: tuple[str | None, str | None], other: tuple[str | None, str | None]
) -> None:
    mine = block_hashes(ids, 4, adapter=one[0], salt=one[1])
    theirs = block_hashes(ids, 4, adapter=other[0], salt=other[1])
    assert mine == theirs if one == other else set(mine).isdisjoint(theirs)


@given(st.integers(0, 5), st.sampled_from([(b"a",), (b"a", b"b"), (b"ab",), (b"", b"ab")]))
def test_an_extra_key_parts_its_block_and_all_after_it(at: int, key: tuple[bytes, ...]) -> None:
    plain = block_hashes(range(24), 4)
    keys = [key if i == at else None for i in range(6)]
    keyed = block_hashes(range(24), 4, extra_keys=keys)
    assert keyed[:at] == plain[:at]
    assert set(keyed[at:]).isdisjoint(plain)
    assert block_hashes(range(24), 4, extra_keys=[(b"z",) if i == at else None for i in range(6)])[at] != keyed[at]


def test_keys_that_concatenate_alike_differ() -> None:
    forms: list[tuple[bytes, ...]] = [(b"ab",), (b"a", b"b"), (b"", b"ab"), (b"ab", b"")]
    assert len({block_hashes([1], 1, extra_keys=[form])[0] for form in forms}) == len(forms)
    assert block_hashes([1], 1, adapter="as") != block_hashes([1], 1, adapter="a", salt="s")
    assert block_hashes([1], 1, extra_keys=[()]) == block_hashes([1], 1)


@pytest.mark.parametrize(
    ("ids", "block_size", "keys", "named"),
    [
        ([1], 0, None, "block_size"),
        ([-1], 1, None, "tokens"),
        ([2**32], 1, None, "tokens"),
        ([1.5], 1, None, "tokens"),
        (b"abcde", 1, None, "tokens"),
        ([1, 2], 1, [None], "extra_keys"),
    ],
)
def test_wrong_input_is_refused_by_name(ids: list[int], block_size: int, keys: list[None] | None, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        block_hashes(ids, block_size, extra_keys=keys)
