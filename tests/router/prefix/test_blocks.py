"""Token ids and text as prompts: what shares blocks, what never does, what is bounded."""

from array import array
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pointsman.blockhash import block_hashes
from router.prefix.blocks import (
    MAX_HASHED_BLOCKS,
    CacheScope,
    num_common,
    prompt_of_text,
    prompt_of_tokens,
    text_of_chat,
)

PLAIN = CacheScope(block_size=16, adapter=None, salt=None)
values = st.none() | st.text(max_size=5) | st.integers(0, 9) | st.lists(st.text(max_size=3), max_size=2)
messages = st.fixed_dictionaries({"role": st.text(max_size=3), "content": values}, optional={"name": values})


def common(one: list[int], other: list[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def test_token_ids_hash_as_the_engine_hashes_them() -> None:
    ids = array("I", range(50))
    prompt = prompt_of_tokens(ids, CacheScope(block_size=16, adapter="blue", salt="s"), num_template_tokens=3)
    assert list(prompt.block_hashes) == block_hashes(range(50), 16, adapter="blue", salt="s")
    assert (prompt.num_tokens, prompt.block_size, prompt.num_template_tokens, prompt.is_exact) == (50, 16, 3, True)


def test_media_part_the_blocks_from_where_they_stand() -> None:
    ids = array("I", range(64))
    plain = prompt_of_tokens(ids, PLAIN).block_hashes
    one = prompt_of_tokens(ids, PLAIN, media=[(20, b"one")])
    other, moved = (prompt_of_tokens(ids, PLAIN, media=[m]).block_hashes for m in [(20, b"two"), (21, b"one")])
    assert not one.is_exact
    assert [common(list(one.block_hashes), list(hashes)) for hashes in (plain, other, moved)] == [1, 1, 1]
    assert prompt_of_tokens(ids, PLAIN, media=[(20, b"one")]).block_hashes == one.block_hashes
    two = prompt_of_tokens(ids, PLAIN, media=[(20, b"one"), (63, b"x"), (10**9, b"y")]).block_hashes
    assert common(list(two), list(one.block_hashes)) == 3


def test_the_longest_prompts_are_counted_whole_but_hashed_to_a_bound() -> None:
    num_tokens = (MAX_HASHED_BLOCKS + 5) * 16
    by_tokens = prompt_of_tokens(array("I", bytes(4 * num_tokens)), PLAIN, media=[(0, b"k")])
    by_text = prompt_of_text(b"x" * 4 * num_tokens, PLAIN)
    for prompt in (by_tokens, by_text):
        assert (prompt.num_tokens, len(prompt.block_hashes)) == (num_tokens, MAX_HASHED_BLOCKS)


def test_a_pool_of_tiny_blocks_gets_multiples_of_them() -> None:
    sizes = {size: CacheScope.of(size, None, None).block_size for size in (1, 5, 16, 64)}
    assert sizes == {1: 16, 5: 20, 16: 16, 64: 64}
    assert CacheScope.of(16, "blue", "s") == CacheScope(16, "blue", "s")


def test_no_two_scopes_have_a_key_in_common() -> None:
    names = [None, "", "a", "None", "'a'", "a\ud800"]
    scopes = [CacheScope(size, adapter, salt) for size in (16, 32) for adapter in names for salt in names]
    keys = {scope.key(seed) for scope in scopes for seed in (0, 2**63 - 1)}
    assert len(keys) == 2 * len(scopes)
    assert all(0 <= key < 2**64 for key in keys)


def test_hashes_go_on_where_others_ended() -> None:
    ids = array("I", range(100))
    for scope in (PLAIN, CacheScope(16, "blue", "s")):
        whole = scope.hashes(ids)
        assert scope.hashes(ids[32:], after=whole[:2]) == whole[2:]
    assert PLAIN.hashes(ids, after=[1] * (MAX_HASHED_BLOCKS - 2)) == block_hashes(ids[:32], 16, parent=1)
    assert PLAIN.hashes(ids, after=[1] * MAX_HASHED_BLOCKS) == []


def test_a_common_beginning_is_counted() -> None:
    ids = array("I", [1, 2, 3])
    others = [array("I", other) for other in ([], [1, 2], [1, 2, 3], [1, 2, 3, 4], [1, 9, 3], [9])]
    assert [num_common(ids, other) for other in others] == [0, 2, 3, 3, 1, 0]


@given(st.binary(max_size=300), st.binary(max_size=100))
def test_texts_share_the_blocks_of_their_common_beginning(text: bytes, more: bytes) -> None:
    prompt, longer = prompt_of_text(text, PLAIN), prompt_of_text(text + more, PLAIN)
    assert len(prompt.block_hashes) == len(text) // 64
    assert longer.block_hashes[: len(prompt.block_hashes)] == prompt.block_hashes
    assert prompt.num_tokens == (len(text) + 3) // 4
    assert not prompt.is_exact


@given(st.lists(messages, max_size=3), st.lists(messages, max_size=3))
def test_no_two_chats_have_the_same_text(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    assert (text_of_chat(one, {}) == text_of_chat(other, {})) == (one == other)


def test_the_text_of_a_chat_grows_at_its_end_and_begins_with_the_tools() -> None:
    user, answer = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello", "name": "a"}
    assert text_of_chat([user, answer], {}).startswith(text_of_chat([user], {}))
    assert text_of_chat([{"content": "hi", "role": "user"}], {}) == text_of_chat([user], {})
    with_tools = text_of_chat([user], {"tools": [{"b": 1, "a": 2}]})
    assert with_tools == b'{"tools":[{"a":2,"b":1}]}' + text_of_chat([user], {})
