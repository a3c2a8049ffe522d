"""Text to token ids, a segment at a time. Knows one model's tokenizer; nothing of messages, pools or blocks.

A tokenizer splits at special tokens before all else, so the ids of a text are those of its segments, each from one
special token to the next; the turns of a chat are such segments, and one that was seen before need not be encoded
again. That this is exact is verified on a table of texts when a tokenizer is loaded; where it is not, no cut is made.
"""

import re
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from sys import getsizeof

import tokenizers

from router.prefix.source import SourceError

# Of one text; what follows the last cut is one segment, however long.
MAX_CUTS = 4096
SEGMENT_OVERHEAD_BYTES = 300
_NUM_VERIFIED_TOKENS = 8
_VERIFIED_TEXTS = (
    "Hello", "", " a", "\n", "\n\n  x ", "12 34", "naïve 東京 🚂\u200d", "\u2581_", "don't  \t stop", "<|", "a<b>"
)  # fmt: skip


class SegmentTokenizer:
    """A model's tokenizer, cut into segments. Immutable; safe to use from any thread."""

    __slots__ = ("_after", "_before", "_cut_tokens", "_pattern", "_tokenizer")

    def __init__(self, tokenizer_json: str) -> None:
        """Takes up to a second. Raises SourceError for what is no tokenizer.json, or one that we cannot follow."""
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json)
        except Exception as error:  # The library has no narrower class.
            raise SourceError(f"`tokenizer` is no tokenizer.json: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._before, self._after = self._frame()
        self._cut_tokens, self._pattern = self._cuts()
        if not self._is_exact():
            self._cut_tokens, self._pattern = frozenset[str](), None
            if not self._is_exact():
                raise SourceError("`tokenizer`: its post-processor does more than put tokens around a text")

    def split(self, text: str) -> list[str]:
        """Segments that make up `text`, none of them empty."""
        if self._pattern is None:
            return [text] if text else []
        found = (match.start() for match in self._pattern.finditer(text) if match[0] in self._cut_tokens)
        return [text[start:end] for start, end in pairwise([0, *islice(found, MAX_CUTS), len(text)]) if start < end]

    def encode_all(self, segments: Sequence[str]) -> "list[array[int]]":
        """Token ids of each, without those that the tokenizer would put around a whole text. Raises
        UnicodeEncodeError for a lone surrogate."""
        return [self._encode(segment) for segment in segments]

    def framed(self, ids: "array[int]") -> "array[int]":
        """What a completion prompt is made of: the ids of its text, between the tokenizer's own first and last."""
        return self._before + ids + self._after

    def _encode(self, segment: str) -> "array[int]":
        try:
            # Unlike `encode`, this gives up the interpreter lock meanwhile.
            return array("I", self._tokenizer.encode_batch_fast([segment], add_special_tokens=False)[0].ids)
        except TypeError:
            segment.encode()  # The library does not say what is wrong; this does.
            raise

    def _frame(self) -> "tuple[array[int], array[int]]":
        bare, whole = self._encode("a"), self._whole("a")
        start = next((at for at in range(len(whole)) if whole[at : at + len(bare)] == bare), 0)
        return whole[:start], whole[start + len(bare) :]

    def _whole(self, text: str) -> "array[int]":
        return array("I", self._tokenizer.encode(text).ids)

    def _cuts(self) -> "tuple[frozenset[str], re.Pattern[str] | None]":
        """The tokens to cut before, and a pattern that finds these as the tokenizer does: the longest that begins
        first. It also finds other added tokens where those could hide one."""
        added = [token for token in self._tokenizer.get_added_tokens_decoder().values() if not token.single_word]
        is_normalized = self._tokenizer.normalizer is not None
        cuts = {t.content for t in added if t.special and not t.lstrip and not (is_normalized and t.normalized)}
        beginnings = {content[0] for content in cuts}
        hiding = {t.content for t in added if not beginnings.isdisjoint(t.content)}
        if not cuts:
            return frozenset(), None
        longest_first = sorted(cuts | hiding, key=len, reverse=True)
        return frozenset(cuts), re.compile("|".join(map(re.escape, longest_first)))

    def _is_exact(self) -> bool:
        return all(self._whole(text) == self.framed(self._joined(text)) for text in self._verified_texts())

    def _joined(self, text: str) -> "array[int]":
        return sum(self.encode_all(self.split(text)), array("I"))

    def _verified_texts(self) -> list[str]:
        tokens = sorted(self._cut_tokens)[:_NUM_VERIFIED_TOKENS] or [""]
        pairs = list(pairwise(_VERIFIED_TEXTS + _VERIFIED_TEXTS[:1]))
        return [f"{one}{token}{two}{token}{token}{one}\n{token}" for one, two in pairs for token in tokens]

    def __repr__(self) -> str:
        return f"<SegmentTokenizer {self._tokenizer.get_vocab_size()} tokens, cuts before {len(self._cut_tokens)}>"


@dataclass(eq=False, slots=True)
class SegmentCache:
    """Ids of segments seen before, least recently used last, in at most `max_bytes`. For one thread."""

    max_bytes: int
    num_bytes: int = 0
    _ids: "OrderedDict[tuple[SegmentTokenizer, str], array[int]]" = field(default_factory=OrderedDict)

    def get(self, tokenizer: SegmentTokenizer, segment: str) -> "array[int] | None":
        key = (tokenizer, segment)
        ids = self._ids.get(key)
        if ids is not None:
            self._ids.move_to_end(key)
        return ids

    def put(self, tokenizer: SegmentTokenizer, segments: Sequence[str], encoded: "Sequence[array[int]]") -> None:
        for segment, ids in zip(segments, encoded, strict=True):
            key = (tokenizer, segment)
            if key not in self._ids:
                self.num_bytes += _cost_bytes(segment, ids)
            self._ids[key] = ids
        while self.num_bytes > self.max_bytes:
            (_, segment), ids = self._ids.popitem(last=False)
            self.num_bytes -= _cost_bytes(segment, ids)

    def __repr__(self) -> str:
        return f"<SegmentCache {len(self._ids)} segments, {self.num_bytes} of {self.max_bytes} bytes>"


def _cost_bytes(segment: str, ids: "array[int]") -> int:
    return getsizeof(segment) + 4 * len(ids) + SEGMENT_OVERHEAD_BYTES
