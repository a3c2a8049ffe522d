"""Tokenizing: exact against whole texts wherever these are cut, and what shortcuts are taken when."""

import json
import random
from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from router.prefix.fast import FastEncoder
from router.prefix.source import SourceError
from router.prefix.tokens import PromptTokenizer

PIECES = st.sampled_from(
    ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|", "|>", "\n", "  ", " a", "fox", "é", "🚂", "\t", "\u0301"]
)


def ids_of(tokenizer: PromptTokenizer, text: str) -> list[int]:
    parts = [part for segment in tokenizer.cuts.segments(text) for part in tokenizer.cuts.parts(segment.encode())]
    return list(sum(tokenizer.encode_all(parts), array("I")))


def whole_ids(document: str, text: str) -> list[int]:
    ids: list[int] = Tokenizer.from_str(document).encode(text, add_special_tokens=False).ids
    return ids


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


@settings(max_examples=200, deadline=None)
@given(pieces=st.lists(PIECES | st.text(max_size=6), max_size=12))
def test_segments_encode_as_the_whole_text_does(
    tokenizer: PromptTokenizer, tokenizer_json: str, pieces: list[str]
) -> None:
    text = "".join(pieces)
    assert ids_of(tokenizer, text) == whole_ids(tokenizer_json, text)


@pytest.mark.parametrize("seed", range(30))
def test_long_texts_cut_at_words_encode_as_the_whole_text_does(
    tokenizer: PromptTokenizer, tokenizer_json: str, seed: int
) -> None:
    rng = random.Random(seed)
    pieces = ["The", "fox", "9", "'s", "-", "東", ".", "e\u0301", "\t", "\n", " ", "  \n", "x" * 90, "<|im_end|>", "🚂"]
    text = " ".join(rng.choices(pieces, k=rng.randint(300, 900)))
    assert len(tokenizer.cuts.parts(text.encode())) > 1
    assert ids_of(tokenizer, text) == whole_ids(tokenizer_json, text)


@pytest.mark.parametrize(
    ("content", "flags", "text"),
    [
        ("<pad>", {"rstrip": True}, "a<pad>  b<pad>\n<|im_end|>"),
        ("<pad>", {"lstrip": True}, "a  <pad>b\n<pad> <|im_end|>  <pad>"),
        ("<pad>", {"single_word": True}, "a<pad> <pad> b"),
        ("<|im_start|>x", {}, "<|im_start|>x <|im_start|>y"),
        ("b<|im_", {"special": False}, "ab<|im_start|>a b<|im_"),
        ("<pad>", {"normalized": True}, "a<pad>b<|im_end|>"),
        ("fox", {"rstrip": True}, "The fox jumps " * 80),
        ("quick brown", {}, "The quick brown fox " * 80),
    ],
)
def test_tokens_that_take_their_neighbours_along_stay_exact(
    tokenizer_json: str, content: str, flags: dict[str, bool], text: str
) -> None:
    document = with_token(tokenizer_json, content, **flags)
    tokenizer = PromptTokenizer(document)
    assert ids_of(tokenizer, text) == whole_ids(document, text)
    assert len(tokenizer.cuts.segments("<|im_end|>" * 3)) == 3


def test_a_tokenizer_whose_segments_are_not_exact_is_not_cut(tokenizer_json: str) -> None:
    # Found only as a word of its own, so the cuts cannot know it; it hides a token to cut before.
    document = with_token(tokenizer_json, "Hello<|im_start|>", single_word=True)
    tokenizer, text = PromptTokenizer(document), "Hello<|im_start|> <|im_end|>"
    assert tokenizer.cuts.segments(text) == [text]
    assert tokenizer.cuts.at_mark(text) == (text, "")
    assert ids_of(tokenizer, text) == whole_ids(document, text)


def test_a_tokenizer_that_puts_something_before_each_text_is_cut_at_tokens_only(tokenizer_json: str) -> None:
    document = changed(tokenizer_json, normalizer={"type": "Prepend", "prepend": "_"})
    tokenizer, text = PromptTokenizer(document), "The quick brown fox " * 100 + "<|im_end|>" + "x"
    assert not tokenizer.cuts.has_words
    assert len(tokenizer.cuts.segments(text)) == 2
    assert ids_of(tokenizer, text) == whole_ids(document, text)


def test_a_tokenizer_whose_tokens_span_words_is_not_cut_at_them() -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["of the points of the line of the track"] * 9, trainer)
    document, text = tokenizer.to_str(), "of the line of the " * 100
    assert not PromptTokenizer(document).cuts.has_words
    assert ids_of(PromptTokenizer(document), text) == whole_ids(document, text)


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
    tokenizer = PromptTokenizer(changed(tokenizer_json, post_processor=template))
    assert (list(tokenizer.first), list(tokenizer.last)) == ([0], [1])
    assert ids_of(tokenizer, "fox") == whole_ids(tokenizer_json, "fox")


def test_truncation_and_padding_of_the_file_are_put_aside(tokenizer_json: str) -> None:
    tokenizer = Tokenizer.from_str(tokenizer_json)
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=9)
    assert ids_of(PromptTokenizer(tokenizer.to_str()), "The quick brown fox") == whole_ids(
        tokenizer_json, "The quick brown fox"
    )


class Breaking:
    """What is left of a fast encoder that breaks on every text."""

    def encode(self, text: bytes) -> None:
        return None


@pytest.mark.parametrize("fast", [None, Breaking()])
def test_without_the_fast_encoder_the_ids_are_the_same(
    tokenizer_json: str, monkeypatch: pytest.MonkeyPatch, fast: Any
) -> None:
    monkeypatch.setattr(FastEncoder, "load", lambda *_: fast)
    tokenizer, text = PromptTokenizer(tokenizer_json), "The quick<|im_end|> brown fox"
    assert ids_of(tokenizer, text) == whole_ids(tokenizer_json, text)
    assert repr(tokenizer).endswith(", fast>") == (fast is not None)


@pytest.mark.parametrize("document", ["", "{}", "[1]", '{"model": {"type": "Nothing"}}'])
def test_what_is_no_tokenizer_is_refused(document: str) -> None:
    with pytest.raises(SourceError, match="`tokenizer`"):
        PromptTokenizer(document)
