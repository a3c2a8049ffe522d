"""What is known of texts read before, by prefix: how many tokens they have and how their blocks hash.

Knows keys, ids and hashes; nothing of text, tokenizers or requests. A key stands for a whole text up to a place where
it may be cut: the hash of what was added there, seeded with the key before. So a text that grows, or that shares its
beginning with another, finds the deepest place that both have passed.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from router.prefix.blocks import CacheScope, num_common

# As traced; an array takes 8 bytes a number, and an eighth more while it grows.
LINE_BYTES = 500
PLACE_BYTES = 380
NUMBER_BYTES = 9


class Line(msgspec.Struct, eq=False, gc=False):
    """One growing text: the hashes of its blocks, how many of its leading tokens are the template's own, the keys of
    the places that were first passed on it. `num_bytes`: 0 while it is not kept."""

    hashes: "array[int]"
    num_template_tokens: int
    keys: list[int] = []
    num_bytes: int = 0


class Place(msgspec.Struct, eq=False, frozen=True, gc=False):
    """A text up to here: the first `num_blocks` hashes of its line, its length, and the ids that fill no block yet."""

    line: Line
    num_blocks: int
    num_tokens: int
    rest: "array[int]"

    @classmethod
    def before_text(cls, ids: "array[int]") -> "Place":
        """The beginning of texts that have these ids before their own."""
        return cls(Line(array("Q"), 0), 0, len(ids), ids)

    @property
    def block_hashes(self) -> "array[int]":
        return self.line.hashes[: self.num_blocks]

    @property
    def num_template_tokens(self) -> int:
        return min(self.line.num_template_tokens, self.num_tokens)


@dataclass(eq=False, slots=True)
class KnownTexts:
    """Places by key, in at most `max_bytes`; lines go whole, the one not used for longest first. For one thread."""

    max_bytes: int
    num_bytes: int = 0
    _places: dict[int, Place] = field(default_factory=dict)
    _lines: "OrderedDict[Line, None]" = field(default_factory=OrderedDict)

    def get(self, key: int) -> Place | None:
        """The place of this key, whose line counts as used now."""
        place = self._places.get(key)
        if place is not None:
            self._lines.move_to_end(place.line)
        return place

    def deepest(self, keys: Sequence[int], start: Place) -> tuple[int, Place]:
        """How many of a text's keys lead to the deepest one known, and its place; 0 and `start` where none is."""
        for num_keys in range(len(keys), 0, -1):
            place = self._places.get(keys[num_keys - 1])
            if place is not None:
                self._lines.move_to_end(place.line)
                return num_keys, place
        return 0, start

    def extend(
        self,
        start: Place,
        keys: Sequence[int],
        encoded: "Sequence[array[int]]",
        scope: CacheScope,
        template_ids: "array[int]",
    ) -> Place:
        """Pass the places of `keys`, each as many ids after the one before as `encoded` says; at least one.

        Returns the last, which is valid even where there is no room to keep it.
        """
        ids, ends = start.rest[:], []
        for part in encoded:
            ids.extend(part)
            ends.append(len(ids))
        line = _line_from(start, ids, template_ids)
        line.hashes.extend(array("Q", scope.hashes(ids, after=line.hashes)))
        place = start
        for key, end in zip(keys, ends, strict=True):
            place = _place(start, line, ids, end, scope.block_size)
            # A place that another request passed meanwhile stays as it is.
            if self._places.setdefault(key, place) is place:
                line.keys.append(key)
        self._keep(line)
        return place

    def _keep(self, line: Line) -> None:
        num_places = len(line.keys)
        num_bytes = LINE_BYTES + PLACE_BYTES * num_places + NUMBER_BYTES * (num_places + len(line.hashes))
        self.num_bytes += num_bytes - line.num_bytes
        line.num_bytes = num_bytes
        self._lines[line] = None
        self._lines.move_to_end(line)
        while self.num_bytes > self.max_bytes:
            self._evict()

    def _evict(self) -> None:
        line, _ = self._lines.popitem(last=False)
        for key in line.keys:
            del self._places[key]
        self.num_bytes -= line.num_bytes
        line.num_bytes = 0

    def __repr__(self) -> str:
        return f"<KnownTexts {len(self._places)} places on {len(self._lines)} lines, {self.num_bytes} bytes>"


def _line_from(start: Place, ids: "array[int]", template_ids: "array[int]") -> Line:
    """The line of `start` where that ends there, else a new one that begins like it. `ids`: those from the rest of
    `start` on."""
    num_template_tokens = start.num_template_tokens
    is_template = num_template_tokens == start.num_tokens < len(template_ids)
    if start.line.num_bytes and len(start.line.hashes) == start.num_blocks and not is_template:
        return start.line
    if is_template:  # So far: texts part within it.
        more, at = template_ids[start.num_tokens :], len(start.rest)
        num_template_tokens += num_common(ids[at : at + len(more)], more)
    return Line(start.block_hashes, num_template_tokens)


def _place(start: Place, line: Line, ids: "array[int]", end: int, block_size: int) -> Place:
    """The place after `ids[:end]`."""
    full = end // block_size
    num_tokens, num_blocks = start.num_tokens + end - len(start.rest), start.num_blocks + full
    if num_blocks > len(line.hashes):  # The end of a very long text is not hashed.
        return Place(line, len(line.hashes), num_tokens, array("I"))
    return Place(line, num_blocks, num_tokens, ids[full * block_size : end])
