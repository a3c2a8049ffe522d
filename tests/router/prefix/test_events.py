"""KV events in every encoding that engines have used, captured and made, and what is none."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.prefix.events import (
    BadEvents,
    Batch,
    Cleared,
    Event,
    Moved,
    Removed,
    Stored,
    decode,
    from_polled,
    hash_of,
    is_host,
)

CAPTURED = Path("tests/fixtures/vllm-0.32-cpu/kv_events_batch_seq0.msgpack")
STORED: dict[str, Any] = {
    "type": "BlockStored",
    "block_hashes": [7, b"\x00" * 24 + (8).to_bytes(8, "big")],
    "parent_block_hash": None,
    "token_ids": [1, 2, 3, 4],
    "block_size": 2,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": "tuned",
}
REMOVED = {"type": "BlockRemoved", "block_hashes": [7], "medium": "GPU"}
CLEARED = {"type": "AllBlocksCleared"}
EXPECTED: list[Event] = [
    Stored([7, 8], None, [1, 2, 3, 4], 2, adapter="tuned"),
    Removed([7]),
    Cleared(),
]


def listed(event: Mapping[str, Any]) -> list[Any]:
    return list(event.values())


def packed(outer: object) -> bytes:
    return msgspec.msgpack.encode(outer)


def decode_one(**fields: Any) -> Stored:
    (event,) = decode(packed([0.0, [STORED | fields]])).events
    assert isinstance(event, Stored)
    return event


@pytest.mark.parametrize("events_as", [dict, listed])
@pytest.mark.parametrize("batch_as", ["list", "map"])
def test_each_level_may_be_a_list_or_a_map(events_as: Any, batch_as: str) -> None:
    events = [events_as(event) for event in (STORED, REMOVED, CLEARED)]
    outer = [1.5, events, 3] if batch_as == "list" else {"ts": 1.5, "events": events, "data_parallel_rank": 3}
    assert decode(packed(outer)) == Batch(EXPECTED, rank=3)


def test_a_batch_captured_from_a_real_vllm_is_understood() -> None:
    batch = decode(CAPTURED.read_bytes())
    (stored,) = batch.events
    assert isinstance(stored, Stored)
    assert (batch.rank, batch.num_skipped) == (0, 0)
    assert (len(stored.hashes), stored.parent, stored.block_size, stored.group) == (2, None, 128, 0)
    assert len(stored.token_ids) == 256
    assert not stored.is_windowed
    assert stored.extra_keys is None


def test_unknown_tags_and_fields_are_skipped_and_the_rest_of_the_batch_counts() -> None:
    events = [
        {"type": "BlockAdmired", "block_hashes": [1]},
        ["BlockAdmired", 1],
        [],
        "text",
        STORED | {"colour": "red", "session_id": "s"},
        [*listed(STORED), None, 0, "full_attention", None, "LOCAL", None, "later", 42],
    ]
    batch = decode(packed([0.0, events, None, "more"]))
    assert [type(event) for event in batch.events] == [Stored, Stored]
    assert batch.num_skipped == 4


def test_absent_trailing_fields_are_their_defaults() -> None:
    assert decode(packed([0.0, [["BlockStored", [1], None, [5, 6], 2]]])) == Batch([Stored([1], None, [5, 6], 2)])
    assert decode(packed([0.0, [["BlockRemoved", [1]]]])) == Batch([Removed([1])])


@pytest.mark.parametrize(
    "fields",
    [
        {"token_ids": [1, 2, 3]},
        {"block_hashes": []},
        {"block_hashes": ["text", 1]},
        {"block_size": "two"},
        {"block_size": None},
        {"parent_block_hash": 1.5},
        {"extra_keys": [["k"]]},
        {"token_ids": None},
    ],
)
def test_a_stored_event_that_cannot_be_made_out_is_skipped(fields: Mapping[str, Any]) -> None:
    batch = decode(packed([0.0, [{**STORED, **fields}, CLEARED]]))
    assert (batch.events, batch.num_skipped) == ([Cleared()], 1)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        packed("text"),
        packed([1.0]),
        packed([1.0, "events"]),
        packed({"ts": 1.0}),
        packed([1.0, [{"type": "BlockRemoved"}]]),
        packed([1.0, [{"type": "BlockRemoved", "block_hashes": [None]}]]),
        packed([1.0, [["BlockRemoved"]]]),
    ],
)
def test_a_batch_that_may_hide_a_removal_is_refused(payload: bytes) -> None:
    with pytest.raises(BadEvents):
        decode(payload)


@given(st.binary(max_size=200))
def test_no_bytes_do_more_than_be_refused(payload: bytes) -> None:
    with contextlib.suppress(BadEvents):
        decode(payload)


_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5) | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(["BlockStored", "BlockRemoved", "TierBlocksCleared"]), st.lists(_values, max_size=12))
def test_no_values_in_known_events_do_more_than_be_skipped_or_refused(tag: str, values: Sequence[Any]) -> None:
    with contextlib.suppress(BadEvents):
        decode(packed([0.0, [[tag, *values]]]))


@pytest.mark.parametrize(
    ("medium", "expected"),
    [(None, False), ("GPU", False), ("CPU", True), ("cpu_pinned", True), ("host", True), ("STORAGE", None), (3, False)],
)
def test_a_medium_is_the_device_the_host_or_too_far(medium: object, expected: bool | None) -> None:
    assert is_host(medium) is expected


def test_what_is_on_another_machine_is_too_far() -> None:
    assert decode_one(locality="REMOTE").is_host is None
    assert decode_one(locality="LOCAL").is_host is False


def test_adapter_salt_and_images_are_told_apart_in_the_extra_keys() -> None:
    keys = [["tuned", ["image-1", 3], "pepper"], ["tuned", ["image-1", -1]]]
    stored = decode_one(extra_keys=keys)
    assert (stored.adapter, stored.salt) == ("tuned", "pepper")
    assert stored.extra_keys is not None
    assert [len(block) for block in stored.extra_keys] == [1, 1]
    assert stored.extra_keys[0] != stored.extra_keys[1]
    only_salt = decode_one(lora_name=None, extra_keys=[["pepper"], None])
    assert (only_salt.adapter, only_salt.salt, only_salt.extra_keys) == (None, "pepper", None)


def test_sglang_s_eighth_field_is_known_by_its_type() -> None:
    start = listed(STORED)[:7]
    (with_salt,) = decode(packed([0.0, [[*start, {"cache_salt": "pepper"}]]])).events
    (with_types,) = decode(packed([0.0, [[*start, ["full", "swa"], {"cache_salt": "x"}]]])).events
    assert isinstance(with_salt, Stored)
    assert (with_salt.adapter, with_salt.salt) == (None, "pepper")
    assert isinstance(with_types, Stored)
    assert (with_types.adapter, with_types.salt) == (None, "x")


def test_the_words_that_mooncake_proposes_for_all_engines_are_understood() -> None:
    events = [
        {"event_type": "stored", "seq_hashes": [1, 2], "parent_hash": None, "token_ids": [5, 6], "block_size": 1},
        {
            "event_type": "stored",
            "seq_hashes": [3],
            "parent_hash": 2,
            "token_ids": [7],
            "block_size": 1,
            "medium": "cpu",
        },
        {"event_type": "stored", "seq_hashes": [4], "base_block_idx": 5, "token_ids": [7], "block_size": 1},
        {"event_type": "stored", "seq_hashes": [4], "parent_hash": 3, "token_ids": None, "block_size": 1},
        {"event_type": "removed", "seq_hashes": [3], "medium": "cpu"},
        {"event_type": "cleared"},
        {"event_type": "later"},
    ]
    batch = decode(packed([0.0, events]))
    assert batch.events == [
        Stored([1, 2], None, [5, 6], 1),
        Stored([3], 2, [7], 1, is_host=True),
        Removed([3], is_host=True),
        Cleared(),
    ]
    assert batch.num_skipped == 3


def test_an_adapter_that_is_only_a_number_is_never_the_bare_model() -> None:
    assert decode_one(lora_name=None, lora_id=4).adapter not in (None, "4", "tuned")


@pytest.mark.parametrize(
    ("fields", "is_windowed"),
    [
        ({"kv_cache_spec_kind": "full_attention"}, False),
        ({"kv_cache_spec_kind": "mla_attention"}, False),
        ({"kv_cache_spec_kind": "sliding_window"}, True),
        ({"kv_cache_spec_kind": "mamba"}, True),
        ({"kv_cache_spec_kind": "full_attention", "kv_cache_spec_sliding_window": 512}, True),
        ({}, False),
    ],
)
def test_caches_that_do_not_hold_all_of_a_prefix_are_marked(fields: Mapping[str, Any], is_windowed: bool) -> None:
    assert decode_one(group_idx=1, **fields).is_windowed is is_windowed


def test_one_memory_alone_may_be_cleared() -> None:
    assert decode(packed([0.0, [{"type": "TierBlocksCleared", "medium": "CPU"}]])).events == [Cleared(is_host=True)]
    assert decode(packed([0.0, [{"type": "TierBlocksCleared", "medium": "STORAGE"}]])).events == []


def test_a_hash_is_its_low_64_bits_as_vllm_makes_ints_of_digests() -> None:
    digest = bytes(range(32))
    assert hash_of(digest) == int.from_bytes(digest[-8:], "big") == hash_of(hash_of(digest))
    assert hash_of(-1) == 2**64 - 1
    for wrong in (None, True, 1.5, b"", "text"):
        with pytest.raises(TypeError):
            hash_of(wrong)


def polled(*entries: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode([{"event_id": at, "data": entry} for at, entry in enumerate(entries)])


def stored_block(hash: int, *token_ids: int, **fields: Any) -> Mapping[str, Any]:
    tokens = [{"type": "unique_token", "token_id": token, "token_extra_id": 0} for token in token_ids]
    return {"type": "stored_block", "block_hash": hash, "tokens": tokens, "lora_id": None, "cache_level": 0, **fields}


def test_tensorrt_llm_s_polled_events_are_understood() -> None:
    page = polled(
        {"type": "created", "num_blocks_per_cache_level": [10, 0]},
        {"type": "stored", "parent_hash": None, "blocks": [stored_block(1, 5, 6), stored_block(2, 7, 8)]},
        {"type": "updated", "block_hash": 2, "cache_level": {"type": "event_diff", "old_value": 0, "new_value": 1}},
        {"type": "updated", "block_hash": 2, "priority": {"type": "event_diff", "old_value": 1, "new_value": 2}},
        {"type": "removed", "block_hashes": [2]},
        {"type": "later"},
    )
    assert list(from_polled(page)) == [
        (0, [Cleared()]),
        (1, [Stored([1], None, [5, 6], 2), Stored([2], 1, [7, 8], 2)]),
        (2, [Moved(2, is_host=True)]),
        (3, []),
        (4, [Removed([2]), Removed([2], is_host=True)]),
        (5, []),
    ]


@pytest.mark.parametrize(
    "page", [b"", b"{}", b"[1]", b'[{"event_id": 1}]', b'[{"event_id": 1, "data": {"type": "stored"}}]']
)
def test_a_polled_page_that_is_none_is_refused(page: bytes) -> None:
    if page == b"{}":
        assert list(from_polled(page)) == []
        return
    with pytest.raises(BadEvents):
        list(from_polled(page))
