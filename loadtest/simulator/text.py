"""Prompts as runs of equal tokens: what a trace's block ids stand for, written out as late as can be. Knows tokens and
block hashes; knows nothing of traces, replicas or time.

A block of a trace becomes as many times one token of its own. So equal blocks are equal tokens, a prompt of a hundred
thousand tokens is a few pairs of numbers, and engine and router hash it as they hash any other.
"""

from array import array
from collections.abc import Sequence

from pointsman.blockhash import TOKEN_BYTES, block_hashes

Text = tuple[tuple[int, int], ...]
"""Token ids, each with how often it stands in a row."""


def num_tokens(text: Text) -> int:
    return sum(count for _, count in text)


def tokens(text: Text) -> tuple[int, ...]:
    written: list[int] = []
    for token, count in text:
        written += [token] * count
    return tuple(written)


def hashes(text: Text, block_size: int, adapter: str | None = None) -> "array[int]":
    """Chained hashes of the full blocks."""
    ids = b"".join(token.to_bytes(TOKEN_BYTES, "little") * count for token, count in text)
    return array("Q", block_hashes(ids, block_size, adapter=adapter))


def clipped(text: Text, most_tokens: int) -> Text:
    """The beginning of the text."""
    kept: list[tuple[int, int]] = []
    for token, count in text:
        if most_tokens <= 0:
            break
        kept.append((token, min(count, most_tokens)))
        most_tokens -= count
    return tuple(kept)


class Ids:
    """Token ids for what has any other name, each its own."""

    def __init__(self) -> None:
        self._by_name: dict[object, int] = {}

    def __getitem__(self, name: object) -> int:
        return self._by_name.setdefault(name, len(self._by_name))


def of_blocks(ids: Ids, block_ids: Sequence[object], block_size: int, length: int, own: object) -> Text:
    """A text of `length` tokens that begins with these blocks; what they do not cover is nobody else's."""
    blocks = clipped(tuple((ids[block], block_size) for block in block_ids), length)
    rest = length - num_tokens(blocks)
    return (*blocks, (ids[own], rest)) if rest > 0 else blocks
