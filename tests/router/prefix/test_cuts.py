"""Where texts may be cut: at which tokens, at which words, and that a longer text has the same cuts."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken

from router.prefix.cuts import MAX_CUTS, Cuts, all_word_ends


def cuts(*tokens: AddedToken, vocabulary: list[str] | None = None, is_normalized: bool = False) -> Cuts:
    return Cuts.of(tokens, ["a", "Ġb", *(vocabulary or [])], is_normalized=is_normalized)


def special(content: str, **flags: bool) -> AddedToken:
    return AddedToken(content, special=True, normalized=False, **flags)


CHATML = cuts(special("<|im_start|>"), special("<|im_end|>"))
words = st.lists(st.sampled_from(["the", "points", "x1", "-", "東京", "\n", ".", "a" * 400]), max_size=900)


def test_a_text_is_cut_before_each_special_token() -> None:
    text = "head<|im_start|>user\nhi<|im_end|>\n<|im_start|>"
    assert CHATML.segments(text) == ["head", "<|im_start|>user\nhi", "<|im_end|>\n", "<|im_start|>"]
    assert CHATML.segments("") == []
    assert cuts().segments(text) == [text]


def test_a_text_of_special_tokens_only_has_a_bounded_number_of_segments() -> None:
    text = "<|im_end|>" * (MAX_CUTS + 100)
    segments = CHATML.segments(text)
    assert len(segments) == MAX_CUTS
    assert "".join(segments) == text


def test_a_longer_token_that_hides_one_is_seen() -> None:
    hiding = cuts(special("<|im_end|>"), special("<|im_end|>x"), AddedToken("b<|im_", special=False))
    assert hiding.segments("b<|im_end|><|im_end|>x<|im_end|>") == ["b<|im_end|>", "<|im_end|>x", "<|im_end|>"]
    assert hiding.marks == frozenset()
    assert CHATML.marks == {"<|im_start|>", "<|im_end|>"}


@pytest.mark.parametrize(
    ("token", "is_normalized", "is_cut"),
    [
        (special("<pad>"), True, True),
        (special("<pad>", lstrip=True), False, False),
        (special("<pad>", single_word=True), False, False),
        (AddedToken("<pad>", special=True, normalized=True), True, False),
        (AddedToken("<pad>", special=True, normalized=True), False, True),
        (AddedToken("<pad>", special=False), False, False),
    ],
)
def test_only_tokens_that_leave_their_left_neighbour_alone_are_cut_at(
    token: AddedToken, is_normalized: bool, is_cut: bool
) -> None:
    assert ("<pad>" in cuts(token, is_normalized=is_normalized).tokens) == is_cut


def test_a_text_is_parted_at_its_first_mark() -> None:
    assert CHATML.at_mark("<|im_end|>\n<|im_start|>user\n") == ("", "<|im_end|>\n<|im_start|>user\n")
    assert CHATML.at_mark("\n<|im_start|>user\n") == ("\n", "<|im_start|>user\n")
    assert CHATML.at_mark(" [/INST]") == (" [/INST]", "")


@pytest.mark.parametrize(
    ("tokens", "vocabulary", "has_words"),
    [
        ([], [], True),
        ([], ["Ġofthe", "aĠ", "Ġb1", "▁x"], True),
        ([], ["ofĠthe"], False),
        ([], ["of▁the"], False),
        ([], ["eĊx"], False),
        ([special("end of text")], ["end of text"], False),
        ([special("END", rstrip=True)], [], False),
        ([special("END>", rstrip=True)], [], True),
    ],
)
def test_a_vocabulary_with_a_token_across_words_is_not_cut_at_them(
    tokens: list[AddedToken], vocabulary: list[str], has_words: bool
) -> None:
    assert cuts(*tokens, vocabulary=vocabulary).has_words == has_words
    text = b"the points are set " * 500
    assert (len(cuts(*tokens, vocabulary=vocabulary).parts(text)) > 5) == has_words


@given(words, words)
def test_parts_make_up_the_text_and_stay_when_it_grows(one: list[str], more: list[str]) -> None:
    text, longer = " ".join(one).encode(), " ".join(one + more).encode()
    parts, longer_parts = CHATML.parts(text), CHATML.parts(longer)
    assert b"".join(parts) == text
    assert longer_parts[: len(parts) - 1] == parts[:-1]
    assert all(part[:1] in (b" ", b"\n") and part[1:2].isalpha() for part in parts[1:])


def test_a_long_text_is_cut_every_kilobyte_or_two_and_a_short_one_is_not() -> None:
    rng = random.Random(1)
    text = " ".join(rng.choices(["the", "railway", "points"], k=20_000)).encode()
    lengths = [len(part) for part in CHATML.parts(text)]
    assert max(lengths) < 2100
    assert len(lengths) < 80
    assert CHATML.parts(text[:512]) == [text[:512]]


def test_a_text_without_words_stays_whole_and_words_behind_it_are_found() -> None:
    text = b"x" * 5000
    assert CHATML.parts(text) == [text]
    assert len(CHATML.parts(text + b" and then words " * 100)) > 1


def test_all_word_ends_are_between_letters_or_digits_and_a_space_before_a_letter() -> None:
    assert all_word_ends(b"ab cd  e\nf1 g. h 2 i") == [b"ab", b" cd  e", b"\nf1", b" g. h 2", b" i"]
    assert all_word_ends(b"") == [b""]
