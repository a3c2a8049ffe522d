"""Stop texts in text that comes in pieces. Knows one choice's text; knows no tokens.

Where the replica stops, it says so with its last piece; a stop text that it went on behind (because of min_tokens) is
text like any other. So what may be one, or the beginning of one, is held until the next piece.
"""

from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class Stops:
    """`_held` begins with a stop text, or with the beginning of one at its end."""

    texts: tuple[str, ...]
    _held: str = ""

    def push(self, text: str) -> str:
        """The text that this piece makes final."""
        if not self.texts:
            return text
        if not text:
            return ""
        was_whole = any(self._held.startswith(stop) for stop in self.texts)  # and it was none: more came behind it
        whole = self._held + text
        at = self._first(whole, 1 if was_whole else 0)
        self._held = whole[at:]
        return whole[:at]

    def end(self, text: str, matched: str | None) -> str:
        """The rest. `matched` is the stop text that ended it, itself not given out."""
        whole = self._held + text
        self._held = ""
        return whole if matched is None or matched not in whole else whole[: whole.index(matched)]

    def _first(self, whole: str, start: int) -> int:
        """Where the first stop text begins, or what may become one; the end where there is none."""
        found = [at for stop in self.texts if (at := whole.find(stop, start)) >= 0]
        longest = max(map(len, self.texts)) - 1
        begun = range(max(start, len(whole) - longest), len(whole))
        found += [at for at in begun if any(stop.startswith(whole[at:]) for stop in self.texts)][:1]
        return min(found, default=len(whole))
