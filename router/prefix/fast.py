"""The fast way from text to token ids: `tokie`, for what it has proved to encode as `tokenizers` does.

tokie is young: it takes rare white space, tabs before signs and newer letters for what they are not. So it is given
only text of characters on which it was right in a million random texts with tokenizers of six families, and only
where it encodes the sample texts of a tokenizer like the reference when that tokenizer is loaded.
"""

import re
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Self

import tokie

from router.prefix import samples

_NUM_RANDOM_TEXTS = 12
_ASCII = bytes([0x0A, *range(0x20, 0x7F)])
# Ranges of letters, signs and emoji. Not in them: controls, other white space than space and newline, combining marks,
# digits other than 0-9, and the long s, which is an "s" to patterns that ignore case.
_BEYOND_ASCII = (
    "\u00a1-\u00ac\u00ae-\u00b1\u00b4-\u00b8\u00ba\u00bb\u00bf-\u017e\u0180-\u02af\u0391-\u0481\u048a-\u0513"
    "\u05d0-\u05ea\u0620-\u063f\u0641-\u064a\u2010-\u2027\u2030-\u205e\u20a0-\u20bf\u2190-\u23ff\u2500-\u2775"
    "\u2794-\u27bf\u3001-\u3004\u3008-\u3020\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fff\uac00-\ud7a3\uff01-\uff0f"
    "\uff1a-\uff5e\U0001f300-\U0001f64f\U0001f680-\U0001f6ff\U0001f900-\U0001f9ff"
)
_ODD = re.compile(f"[^\n -~{_BEYOND_ASCII}]")
# Of the large blocks of letters that are all alike, every so manieth is tried.
_STRIDE = 16
_ALIKE = range(0x4E00, 0xD7A4)


@dataclass(frozen=True, slots=True)
class FastEncoder:
    """One tokenizer, as tokie reads it. Safe to use from any thread; gives up the interpreter lock while it works."""

    _tokenizer: Any

    @classmethod
    def load(cls, tokenizer_json: str, added: Iterable[str], reference: "Callable[[str], array[int]]") -> Self | None:
        """None where tokie cannot load it, or does not encode the samples and the `added` tokens as `reference`."""
        try:
            with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".json") as file:
                file.write(tokenizer_json)
                file.flush()
                encoder = cls(tokie.Tokenizer.from_json(file.name))
            return encoder if all(encoder.encode(text.encode()) == reference(text) for text in _proof(added)) else None
        except BaseException as error:
            if _is_panic(error) or isinstance(error, Exception):
                return None
            raise

    def encode(self, text: bytes) -> "array[int] | None":
        """None where tokie is not trusted with the characters of this UTF-8, or broke."""
        if not _is_plain(text):
            return None
        try:
            # One text at a time: of several it makes as many threads as there are cores.
            ids, _ = self._tokenizer.encode_batch_flat([text.decode()], False)
        except BaseException as error:
            if _is_panic(error):
                return None
            raise
        found = array("I")
        found.frombytes(ids.tobytes())
        return found


def _is_plain(text: bytes) -> bool:
    if text.isascii():
        return not text.translate(None, _ASCII)
    return _ODD.search(text.decode()) is None


def _is_panic(error: BaseException) -> bool:
    """A panic of Rust code; its class cannot be imported, and is no Exception."""
    return type(error).__name__ == "PanicException"


def _proof(added: Iterable[str]) -> Iterator[str]:
    around_added = (f"x{token}{token} y\n{token}'s {token}." for token in added)
    texts = chain(samples.TEXTS, samples.runs_of_kinds(), samples.random_words(_NUM_RANDOM_TEXTS))
    return (_ODD.sub("", text) for text in chain(texts, _characters(), around_added))


def _characters() -> Iterator[str]:
    """All plain characters between others, 256 a text."""
    for start in range(0, 0x20000, 256):
        codes = (code for code in range(start, start + 256) if code not in _ALIKE or code % _STRIDE == 0)
        yield "".join(f"a{c} {c}b{c}{c}1\n" for c in map(chr, codes) if not _ODD.match(c))
