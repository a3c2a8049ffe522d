"""From token ids, or text where no tokenizer is known, to a Prompt. Knows block hashing; nothing of tokenizers.

Without a tokenizer, UTF-8 text is read as little-endian u32, each four bytes a pseudo-token: near enough to the usual
length of a token, and a longer common prefix still has more common blocks.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import msgspec

from pointsman.blockhash import TOKEN_BYTES, block_hashes
from router.core import Pool, Prompt, Request
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
    def of(cls, request: Request, pool: Pool, adapter: str | None) -> Self:
        """The pool's own block size, or the least multiple of it that is worth an entry."""
        block_size = pool.block_size * -(-MIN_BLOCK_TOKENS // pool.block_size)
        return cls(block_size, adapter, request.cache_salt)

    def hashes(self, tokens: "bytes | array[int]", media: Sequence[Media] = ()) -> list[int]:
        """`tokens`: ids, or the bytes of little-endian u32; `media`: in order."""
        num_hashed = MAX_HASHED_BLOCKS * self.block_size * (TOKEN_BYTES if isinstance(tokens, bytes) else 1)
        extra_keys = self._extra_keys(media) if media else None
        return block_hashes(
            tokens[:num_hashed], self.block_size, adapter=self.adapter, salt=self.salt, extra_keys=extra_keys
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
        block_hashes=scope.hashes(ids, media),
        block_size=scope.block_size,
        num_template_tokens=num_template_tokens,
        is_exact=not media,
    )


def prompt_of_text(text: bytes, scope: CacheScope) -> Prompt:
    """Bytes that fill no pseudo-token at the end are counted as one but not hashed."""
    whole = len(text) // TOKEN_BYTES * TOKEN_BYTES
    return Prompt(
        num_tokens=-(-len(text) // TOKEN_BYTES),
        block_hashes=scope.hashes(text[:whole]),
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


def _json(value: object) -> bytes:
    return msgspec.json.encode(value, order="deterministic")
