"""Text to token ids. Knows one model's tokenizer and proves its shortcuts; nothing of messages, pools or blocks.

The reference is `tokenizers`. That cutting a text (`cuts.py`) and the fast encoder (`fast.py`) give the same ids is
verified on sample texts when a tokenizer is loaded; a shortcut that fails there is not taken.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain, pairwise

import tokenizers
from tokenizers.decoders import DecodeStream

from router.prefix import samples
from router.prefix.cuts import Cuts, all_word_ends
from router.prefix.fast import FastEncoder
from router.prefix.source import SourceError

_NUM_VERIFIED_TOKENS = 8
_NUM_RANDOM_TEXTS = 3


class PromptTokenizer:
    """A model's tokenizer. Immutable; safe to use from any thread.

    `cuts`: where texts may be cut. `first`, `last`: what the tokenizer puts around a whole text, chats excepted.
    """

    __slots__ = ("_fast", "_tokenizer", "cuts", "first", "last")

    def __init__(self, tokenizer_json: str) -> None:
        """Takes up to a second. Raises SourceError for what is no tokenizer.json, or one that we cannot follow."""
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json)
        except Exception as error:  # The library has no narrower class.
            raise SourceError(f"`tokenizer` is no tokenizer.json: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.first, self.last = self._frame()
        added = self._tokenizer.get_added_tokens_decoder().values()
        is_normalized = self._tokenizer.normalizer is not None
        self.cuts = self._proven(Cuts.of(added, self._tokenizer.get_vocab(), is_normalized=is_normalized))
        self._fast = FastEncoder.load(tokenizer_json, [token.content for token in added], self._reference)

    def encode_all(self, texts: Iterable[bytes]) -> "list[array[int]]":
        """Token ids of each UTF-8 text, without those that the tokenizer would put around it."""
        return [self.encode(text) for text in texts]

    def encode(self, text: bytes) -> "array[int]":
        ids = None if self._fast is None else self._fast.encode(text)
        return self._reference(text.decode()) if ids is None else ids

    def encode_whole(self, text: str, *, with_special: bool) -> "array[int]":
        """A whole text, with what the tokenizer puts around it or without. Gives up the interpreter lock meanwhile."""
        return self._whole(text) if with_special else self._reference(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Special tokens included; ids of no token are left out."""
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def text(self, ids: Sequence[int]) -> str:
        """What a reader sees of these tokens: special ones are left out."""
        return self._tokenizer.decode(ids, skip_special_tokens=True)

    def step(self, stream: DecodeStream, id: int) -> str | None:
        """The text that this token makes final behind those before it; None where it waits for the next."""
        return stream.step(self._tokenizer, id)

    def spelling(self, id: int) -> str | None:
        """The token as the vocabulary has it."""
        return self._tokenizer.id_to_token(id)

    def _reference(self, text: str) -> "array[int]":
        # Unlike `encode`, this gives up the interpreter lock meanwhile.
        return array("I", self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    def _frame(self) -> "tuple[array[int], array[int]]":
        bare, whole = self._reference("a"), self._whole("a")
        start = next((at for at in range(len(whole)) if whole[at : at + len(bare)] == bare), 0)
        return whole[:start], whole[start + len(bare) :]

    def _whole(self, text: str) -> "array[int]":
        return array("I", self._tokenizer.encode_batch_fast([text])[0].ids)

    def _proven(self, cuts: Cuts) -> Cuts:
        """Less the cuts that change the ids of a sample text."""
        texts = _texts_around(sorted(cuts.tokens)[:_NUM_VERIFIED_TOKENS] or [""])
        if not self._are_exact(texts, cuts):
            cuts = replace(cuts, tokens=frozenset(), marks=frozenset())
            if not self._are_exact(texts, cuts):
                raise SourceError("`tokenizer`: its post-processor does more than put tokens around a text")
        words = chain(samples.TEXTS, samples.runs_of_kinds(), samples.random_words(_NUM_RANDOM_TEXTS))
        is_exact = cuts.has_words and all(self._is_exact(text, all_word_ends(text.encode())) for text in words)
        return replace(cuts, has_words=is_exact)

    def _are_exact(self, texts: Sequence[str], cuts: Cuts) -> bool:
        return all(self._is_exact(text, [part.encode() for part in cuts.segments(text)]) for text in texts)

    def _is_exact(self, text: str, parts: Sequence[bytes]) -> bool:
        joined = sum((self._reference(part.decode()) for part in parts), array("I"))
        return self._whole(text) == self.first + joined + self.last

    def __repr__(self) -> str:
        num_tokens, at_words = self._tokenizer.get_vocab_size(), " and at words" if self.cuts.has_words else ""
        speed = "" if self._fast is None else ", fast"
        return f"<PromptTokenizer {num_tokens} tokens, cut before {len(self.cuts.tokens)}{at_words}{speed}>"


def _texts_around(tokens: Sequence[str]) -> list[str]:
    pairs = list(pairwise(samples.TEXTS + samples.TEXTS[:1]))
    return [f"{one}{token}{two}{token}{token}{one}\n{token}" for one, two in pairs for token in tokens]
