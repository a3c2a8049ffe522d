"""Tokenizing in segments: exact against whole texts, cut where it helps, bounded in memory."""

import json
import random
from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from router.prefix.source import SourceError
from router.prefix.tokens import MAX_CUTS, SEGMENT_OVERHEAD_BYTES, SegmentCache, SegmentTokenizer

PIECES = st.sampled_from(
    ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|", "|>", "\n", "  ", " a", "fox", "é", "🚂"]
)


def ids_of(tokenizer: SegmentTokenizer, text: str) -> list[int]:
    return list(sum(tokenizer.encode_all(tokenizer.split(text)), array("I")))


def changed(tokenizer_json: str, **fields: Any) -> str:
    return json.dumps({**json.loads(tokenizer_json), **fields})


def with_token(tokenizer_json: str, content: str, **flags: bool) -> str:
    """The tokenizer with one more added token."""
    document = json.loads(tokenizer_json)
    added = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}
    token_id = len(document["model"]["vocab"])
    document["model"]["vocab"][content] = token_id
    document["added_tokens"].append({"id": token_id, "content": content, **added, **flags})
    return json.dumps(document)


def test_a_chat_is_cut_before_each_special_token(tokenizer_json: str) -> None:
    text = "head<|im_start|>user\nhi<|im_end|>\n<|im_start|>"
    segments = ["head", "<|im_start|>user\nhi", "<|im_end|>\n", "<|im_start|>"]
    assert SegmentTokenizer(tokenizer_json).split(text) == segments


@settings(max_examples=150, deadline=None)
@given(pieces=st.lists(PIECES | st.text(max_size=6), max_size=12))
def test_segments_encode_as_the_whole_text_does(tokenizer_json: str, pieces: list[str]) -> None:
    text = "".join(pieces)
    tokenizer = SegmentTokenizer(tokenizer_json)
    assert "".join(tokenizer.split(text)) == text
    assert ids_of(tokenizer, text) == Tokenizer.from_str(tokenizer_json).encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize(
    ("content", "flags", "text"),
    [
        ("<pad>", {"rstrip": True}, "a<pad>  b<pad>\n<|im_end|>"),
        ("<pad>", {"lstrip": True}, "a  <pad>b\n<pad> <|im_end|>  <pad>"),
        ("<pad>", {"single_word": True}, "a<pad> <pad> b"),
        ("<|im_start|>x", {}, "<|im_start|>x <|im_start|>y"),
        ("b<|im_", {"special": False}, "ab<|im_start|>a b<|im_"),
        ("<pad>", {"normalized": True}, "a<pad>b<|im_end|>"),
    ],
)
def test_tokens_that_take_their_neighbours_along_stay_exact(
    tokenizer_json: str, content: str, flags: dict[str, bool], text: str
) -> None:
    document = with_token(tokenizer_json, content, **flags)
    tokenizer = SegmentTokenizer(document)
    assert ids_of(tokenizer, text) == Tokenizer.from_str(document).encode(text, add_special_tokens=False).ids
    assert len(tokenizer.split("<|im_end|>" * 3)) == 3


def test_a_tokenizer_whose_segments_are_not_exact_is_not_cut(tokenizer_json: str) -> None:
    # Found only as a word of its own, so the cuts cannot know it; it hides a token to cut before.
    document = with_token(tokenizer_json, "Hello<|im_start|>", single_word=True)
    tokenizer, text = SegmentTokenizer(document), "Hello<|im_start|> <|im_end|>"
    assert tokenizer.split(text) == [text]
    assert tokenizer.split("") == []
    assert ids_of(tokenizer, text) == Tokenizer.from_str(document).encode(text, add_special_tokens=False).ids


def test_a_completion_stands_between_the_tokens_that_the_tokenizer_adds(tokenizer_json: str) -> None:
    ends = enumerate(["<|im_start|>", "<|im_end|>"])
    special = {token: {"id": token, "ids": [token_id], "tokens": [token]} for token_id, token in ends}
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                   {"SpecialToken": {"id": "<|im_end|>", "type_id": 0}}],
        "pair": [],
        "special_tokens": special,
    }  # fmt: skip
    document = changed(tokenizer_json, post_processor=template)
    tokenizer, whole = SegmentTokenizer(document), Tokenizer.from_str(document)
    for text in ("", "fox", "a<|im_end|>b"):
        assert list(tokenizer.framed(array("I", ids_of(tokenizer, text)))) == whole.encode(text).ids


def test_truncation_and_padding_of_the_file_are_put_aside(tokenizer_json: str) -> None:
    tokenizer = Tokenizer.from_str(tokenizer_json)
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=9)
    assert ids_of(SegmentTokenizer(tokenizer.to_str()), "The quick brown fox") == ids_of(
        SegmentTokenizer(tokenizer_json), "The quick brown fox"
    )


def test_a_text_of_special_tokens_only_has_a_bounded_number_of_segments(tokenizer_json: str) -> None:
    text = "<|im_end|>" * (MAX_CUTS + 100)
    segments = SegmentTokenizer(tokenizer_json).split(text)
    assert len(segments) == MAX_CUTS
    assert "".join(segments) == text


def test_a_lone_surrogate_is_told_as_such(tokenizer_json: str) -> None:
    with pytest.raises(UnicodeEncodeError):
        SegmentTokenizer(tokenizer_json).encode_all(["a\ud800"])


@pytest.mark.parametrize("document", ["", "{}", "[1]", '{"model": {"type": "Nothing"}}'])
def test_what_is_no_tokenizer_is_refused(document: str) -> None:
    with pytest.raises(SourceError, match="`tokenizer`"):
        SegmentTokenizer(document)


def test_the_cache_keeps_what_was_used_last_within_its_bytes(tokenizer_json: str) -> None:
    tokenizer, other, rng = SegmentTokenizer(tokenizer_json), SegmentTokenizer(tokenizer_json), random.Random(3)
    cache = SegmentCache(max_bytes=40 * SEGMENT_OVERHEAD_BYTES)
    for _ in range(500):
        assert cache.get(tokenizer, "hot") in (None, array("I", [1, 2]))
        cache.put(tokenizer, ["hot", f"{rng.random()}"], [array("I", [1, 2]), array("I", range(rng.randrange(30)))])
        assert cache.num_bytes <= cache.max_bytes
    assert cache.get(tokenizer, "hot") == array("I", [1, 2])
    assert cache.get(other, "hot") is None
    cache.put(tokenizer, ["x" * cache.max_bytes], [array("I")])
    assert (repr(cache), cache.num_bytes) == (f"<SegmentCache 0 segments, 0 of {cache.max_bytes} bytes>", 0)
