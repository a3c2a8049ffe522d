"""SentencePiece's BPE, as GGUF keeps it for Llama 2 and its kin, as a `tokenizers` tokenizer.

Knows pieces, scores and what each piece is. Must not know GGUF's keys, special tokens' use or chats. SentencePiece
merges the neighbours whose union has the best score; `tokenizers` wants the pairs in that order, so they are worked out
from the pieces, as transformers does it.
"""

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as List

import tokenizers
from tokenizers import decoders, models, normalizers

SPACE = "\u2581"
# SentencePiece's numbers for what a piece is.
_NORMAL, _UNKNOWN = 1, 2


def sentencepiece_tokenizer(
    pieces: List[str], scores: List[float], kinds: List[int], *, adds_space: bool
) -> tokenizers.Tokenizer:
    """`pieces` are each another. With `adds_space`, texts begin with a space that is taken away in decoding."""
    vocabulary = {piece: token_id for token_id, piece in enumerate(pieces)}
    best = {piece: score for piece, score, kind in zip(pieces, scores, kinds, strict=True) if kind == _NORMAL}
    unknown = next((piece for piece, kind in zip(pieces, kinds, strict=True) if kind == _UNKNOWN), None)
    merges = list(_merges(vocabulary, best))
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    space = [normalizers.Prepend(SPACE)] if adds_space else []
    tokenizer.normalizer = normalizers.Sequence([*space, normalizers.Replace(" ", SPACE)])
    strip = [decoders.Strip(" ", 1, 0)] if adds_space else []
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _merges(vocabulary: Mapping[str, int], scores: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """Every two pieces that make a third, the best scores first; among equals, the longest left ones."""
    found = []
    for piece, score in scores.items():
        halves = ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
        pairs = [(left, right) for left, right in halves if left in scores and right in scores]
        pairs.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        found += [(score, left, right) for left, right in pairs]
    found.sort(key=lambda merge: (merge[0], len(merge[1]), len(merge[2])), reverse=True)
    return ((left, right) for _, left, right in found)
