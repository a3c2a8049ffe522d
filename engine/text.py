"""From tokens to the text that a client sees: decoding, and the stop strings that end it.

Knows one generation's decoder and stop strings. Must not know token limits, scheduling or HTTP.
"""

from dataclasses import dataclass

from engine.tokenizer import IncrementalDecoder


@dataclass(eq=False, slots=True)
class TextStream:
    """Gives out text as it becomes final: what may be the beginning of a stop string is held until it is clear.

    The stop string itself is given out only if `keeps_stop`.
    """

    decoder: IncrementalDecoder
    stop: tuple[str, ...]
    keeps_stop: bool = False
    matched: str | None = None
    _held: str = ""

    def push(self, token_id: int, may_stop: bool) -> str:
        """The text that this token makes final. Sets `matched` when a stop string is met, if `may_stop`."""
        text = self._held + self.decoder.push(token_id)
        if not self.stop or not may_stop:
            self._held = ""
            return text
        return self._cut(text) if self._find(text) else self._hold(text)

    def flush(self) -> str:
        """What was held back, when the generation ends for another reason than a stop string."""
        if self.matched is not None:
            return ""
        text, self._held = self._held + self.decoder.flush(), ""
        return text

    def _find(self, text: str) -> bool:
        """Of the stop strings in `text`, the one that begins first."""
        found = [(text.index(stop), stop) for stop in self.stop if stop in text]
        self.matched = min(found)[1] if found else None
        return bool(found)

    def _cut(self, text: str) -> str:
        assert self.matched is not None
        return text[: text.index(self.matched) + self.keeps_stop * len(self.matched)]

    def _hold(self, text: str) -> str:
        """Splits off the longest end of `text` that begins a stop string."""
        longest = min(len(text), max(map(len, self.stop)) - 1)
        for length in range(longest, 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self.stop):
                self._held = text[-length:]
                return text[:-length]
        self._held = ""
        return text
