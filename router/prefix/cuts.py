"""Where a text may be cut so that its parts have the token ids of the whole. Knows added tokens and characters.

Before a special token, since a tokenizer splits there before all else; and within a long text before a space or a
newline between letters, since no pattern in use lets a token span one. Whoever makes a `Cuts` proves it (`tokens.py`).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Self

from tokenizers import AddedToken

# Of one text; what follows the last cut is one segment, however long.
MAX_CUTS = 4096
# Spaces as vocabularies spell them: plain, byte-level, SentencePiece.
_SPANS_A_WORD_END = re.compile("[A-Za-z0-9][ \nĠĊ▁][A-Za-z]").search
_WORD_END = re.compile(rb"[A-Za-z0-9](?=[ \n][A-Za-z])")
_find_word_end = _WORD_END.search
# Bytes searched for the end of a word; without one, the part grows by as many.
_REACH = 512


@dataclass(frozen=True, slots=True)
class Cuts:
    """`tokens`: the special tokens to cut before. `marks`: those of them that can be told whatever stands before.
    `has_words`: may long segments be cut at the ends of words?"""

    tokens: frozenset[str]
    marks: frozenset[str]
    has_words: bool
    _pattern: re.Pattern[str] | None

    @classmethod
    def of(cls, added: Iterable[AddedToken], vocabulary: Iterable[str], *, is_normalized: bool) -> Self:
        """`added`: the tokens that the tokenizer finds in a text before it normalizes or splits it otherwise."""
        added = [token for token in added if token.content]
        findable = [token for token in added if not token.single_word]
        tokens = {t.content for t in findable if t.special and not t.lstrip and not (is_normalized and t.normalized)}
        beginnings = {content[0] for content in tokens}
        hiding = {t.content for t in findable if not beginnings.isdisjoint(t.content)}
        inner = set().union(*(t.content[1:] for t in added))
        spans = any(map(_SPANS_A_WORD_END, vocabulary)) or any(t.rstrip and t.content[-1].isalnum() for t in added)
        # The longest that begins first is found, as the tokenizer does; also others where those could hide one.
        alternatives = "|".join(map(re.escape, sorted(tokens | hiding, key=len, reverse=True)))
        return cls(
            tokens=frozenset(tokens),
            marks=frozenset(content for content in tokens if content[0] not in inner),
            has_words=not spans,
            _pattern=re.compile(alternatives) if tokens else None,
        )

    def segments(self, text: str) -> list[str]:
        """Segments that make up `text`, none of them empty, each but the first beginning with a special token."""
        if self._pattern is None:
            return [text] if text else []
        found = (match.start() for match in self._pattern.finditer(text) if match[0] in self.tokens)
        return [text[start:end] for start, end in pairwise([0, *islice(found, MAX_CUTS), len(text)]) if start < end]

    def at_mark(self, text: str) -> tuple[str, str]:
        """`text` in two, the second beginning with the first mark; empty where there is none."""
        start = min((at for mark in self.marks if (at := text.find(mark)) >= 0), default=len(text))
        return text[:start], text[start:]

    def parts(self, segment: bytes) -> list[bytes]:
        """The segment's UTF-8 cut at some ends of words. A longer segment has the same parts up to where they differ,
        but for the last."""
        start = at = 0
        parts = []
        while self.has_words and (at := at + _step(at)) < len(segment):
            found = _find_word_end(segment, at, at + _REACH)
            if found is not None:
                at = found.end()
                parts.append(segment[start:at])
                start = at
        parts.append(segment[start:])
        return parts


def all_word_ends(text: bytes) -> list[bytes]:
    """The text cut wherever `Cuts.parts` might cut."""
    ends = [match.end() for match in _WORD_END.finditer(text)]
    return [text[start:end] for start, end in pairwise([0, *ends, len(text)])]


def _step(at: int) -> int:
    """Bytes from a cut to where the next is looked for: what a text grown by a little has to read anew."""
    if at < 1024:
        return 512
    return 1024 if at < 16 * 1024 else 2048
