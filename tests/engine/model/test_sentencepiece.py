from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.model.sentencepiece import SPACE, sentencepiece_tokenizer

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
LETTERS = [SPACE, "a", "b", "c", "\u00e9"]
WORDS = st.lists(st.text(alphabet=LETTERS, min_size=2, max_size=5), unique=True, max_size=25)
TEXTS = st.text(alphabet="abc\u00e9\u65e5 \n", max_size=30)


def merged_best_first(text: str, scores: dict[str, float]) -> list[str]:
    """SentencePiece's algorithm in the plainest words: of all neighbours, those whose union has the best score."""
    symbols = list(text)
    while True:
        unions = [left + right for left, right in pairwise(symbols)]
        known = [place for place, union in enumerate(unions) if union in scores]
        if not known:
            break
        best = max(known, key=lambda place: (scores[unions[place]], -place))
        symbols[best : best + 2] = [unions[best]]
    tokens = []
    for symbol in symbols:
        tokens += [symbol] if symbol in scores else [f"<0x{byte:02X}>" for byte in symbol.encode()]
    return tokens


def test_without_a_space_before_it_a_text_is_decoded_as_it_was() -> None:
    pieces = ["<unk>", *BYTES, *LETTERS, f"{SPACE}a"]
    kinds = [2, *[6] * 256, *[1] * 6]
    for adds_space in (False, True):
        made = sentencepiece_tokenizer(pieces, [0.0] * len(pieces), kinds, adds_space=adds_space)
        assert made.decode(made.encode(" a b\u65e5").ids) == " a b\u65e5"
        assert made.encode("a").tokens == ([f"{SPACE}a"] if adds_space else ["a"])


# A word of one repeated letter, or made in two ways from pieces that overlap, may be cut otherwise: transformers' order
# of merges, which ours is, decides there by length, SentencePiece by place.
def made_in_one_way(words: list[str]) -> list[str]:
    kept: list[str] = []
    for word in sorted(words, key=len):
        pieces = {*LETTERS, *kept}
        num_ways = sum(word[:cut] in pieces and word[cut:] in pieces for cut in range(1, len(word)))
        if num_ways <= 1 and len(set(word)) == len(word):
            kept.append(word)
    return sorted(kept, key=words.index)


@given(words=WORDS.map(made_in_one_way), text=TEXTS)
def test_texts_are_cut_as_sentencepiece_cuts_them(words: list[str], text: str) -> None:
    scores = {piece: float(-index) for index, piece in enumerate([*words, *LETTERS])}
    pieces = ["<unk>", *BYTES, *scores]
    kinds = [2, *[6] * 256, *[1] * len(scores)]
    made = sentencepiece_tokenizer(pieces, [0.0] * 257 + list(scores.values()), kinds, adds_space=False)
    assert made.encode(text).tokens == merged_best_first(text.replace(" ", SPACE), scores)


@pytest.mark.slow
@given(words=WORDS)
def test_pairs_are_merged_in_transformers_order(words: list[str]) -> None:
    import json

    from transformers.tokenization_utils_base import generate_merges

    pieces = [*LETTERS, *words]
    scores = {piece: float(-index) for index, piece in enumerate(pieces)}
    made = sentencepiece_tokenizer(pieces, list(scores.values()), [1] * len(pieces), adds_space=True)
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    theirs = generate_merges(vocabulary, scores)
    assert json.loads(made.to_str())["model"]["merges"] == [list(pair) for pair in theirs]
