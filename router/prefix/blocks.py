"""From token ids, or text where no tokenizer is known, to a Prompt. Knows block hashing; nothing of tokenizers.

Without a tokenizer, UTF-8 text is read as little-endian u32, each four bytes a pseudo-token: near enough to the usual
length of a token, and a longer common prefix still has more common blocks.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import msgspec
from xxhash import xxh3_64_intdigest

from pointsman.blockhash import TOKEN_BYTES, block_hashes
from router.core import Prompt
from router.prefix.messages import keyed_content

# Engines may cache in units of down to one token; finer than this only costs memory here.
MIN_BLOCK_TOKENS = 16
# What lies beyond is counted but not hashed: so much in common decides for any replica.
MAX_HASHED_BLOCKS = 8192

# Position in tokens, and key, of what is no text.
Media = tuple[int, bytes]


@dataclass(frozen=True, slots=True)
class CacheScope:
    """What a replica's cache keeps equal tokens apart by: block size in tokens, adapter, salt."""

    block_size: int
    adapter: str | None
    salt: str | None

    @classmethod
    def of(cls, block_size: int, adapter: str | None, salt: str | None) -> Self:
        """In a pool's own block size, or the least multiple of it that is worth an entry."""
        return cls(block_size * -(-MIN_BLOCK_TOKENS // block_size), adapter, salt)

    def key(self, seed: int) -> int:
        """A 64-bit number for texts in this scope, under a seed of 63 bits."""
        if self.adapter is None and self.salt is None:
            return seed + self.block_size
        return xxh3_64_intdigest(f"{self.block_size} {self.adapter!r} {self.salt!r}".encode(), seed)

    def hashes(
        self, tokens: "bytes | array[int]", *, media: Sequence[Media] = (), after: Sequence[int] = ()
    ) -> list[int]:
        """`tokens`: ids, or the bytes of little-endian u32; `media`: in order; `after`: the hashes before these."""
        num_hashed = (MAX_HASHED_BLOCKS - len(after)) * self.block_size
        return block_hashes(
            tokens[: num_hashed * (TOKEN_BYTES if isinstance(tokens, bytes) else 1)],
            self.block_size,
            adapter=self.adapter,
            salt=self.salt,
            extra_keys=self._extra_keys(media) if media else None,
            parent=after[-1] if after else None,
        )

    def _extra_keys(self, media: Sequence[Media]) -> list[tuple[bytes, ...]]:
        keys: list[tuple[bytes, ...]] = [()] * MAX_HASHED_BLOCKS
        for position, key in media:
            block, offset = divmod(position, self.block_size)
            if block < MAX_HASHED_BLOCKS:
                keys[block] += (offset.to_bytes(4, "little") + key,)
        return keys


def prompt_of_tokens(
    ids: "array[int]", scope: CacheScope, *, media: Sequence[Media] = (), num_template_tokens: int = 0
) -> Prompt:
    """Inexact with media: what those take in tokens is not known here."""
    return Prompt(
        num_tokens=len(ids),
        block_hashes=array("Q", scope.hashes(ids, media=media)),
        block_size=scope.block_size,
        num_template_tokens=num_template_tokens,
        is_exact=not media,
    )


def prompt_of_text(text: bytes, scope: CacheScope) -> Prompt:
    """Bytes that fill no pseudo-token at the end are counted as one but not hashed."""
    whole = len(text) // TOKEN_BYTES * TOKEN_BYTES
    return Prompt(
        num_tokens=-(-len(text) // TOKEN_BYTES),
        block_hashes=array("Q", scope.hashes(text[:whole])),
        block_size=scope.block_size,
        is_exact=False,
    )


def text_of_chat(messages: Sequence[Mapping[str, object]], options: Mapping[str, object]) -> bytes:
    """An unambiguous text for a chat that cannot be rendered: JSON of what comes first, then of each message.

    The options (tools, documents) come first, as templates have them; role and content lead each message, and an image
    counts as no more than its key.
    """
    parts = [_json(options)] if options else []
    for message in messages:
        rest = {name: value for name, value in message.items() if name not in ("role", "content")}
        parts.append(_json([message.get("role"), keyed_content(message.get("content")), *([rest] if rest else [])]))
    return b"".join(parts)


def num_common(ids: "array[int]", others: "array[int]") -> int:
    """Length of the common beginning."""
    if ids[: len(others)] == others:
        return len(others)
    return next((at for at, (one, other) in enumerate(zip(ids, others, strict=False)) if one != other), len(ids))


def _json(value: object) -> bytes:
    return msgspec.json.encode(value, order="deterministic")
