"""Whole prompts as token ids, and tokens as text, for replicas that are spoken to in tokens. Knows readings and when
to wait; knows no contracts."""

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tokenizers.decoders import DecodeStream

from router.core import Pool
from router.errors import InvalidRequest
from router.prefix.messages import Messages, plain_messages
from router.prefix.reader import Prompts
from router.prefix.reading import Reading
from router.prefix.tokens import PromptTokenizer

# A tokenizer that takes longer to be loaded is not waited for.
LOADING_S = 10.0


@dataclass(frozen=True, slots=True)
class PromptIds:
    """Implements `ports.TokenIds`. `loaded(pool)` ends when its tokenizer is no more being loaded."""

    prompts: Prompts
    loaded: Callable[[Pool], Awaitable[None]]

    def now(self, pool: Pool, content: object, options: Mapping[str, object]) -> "array[int] | None":
        """See `ports.TokenIds`."""
        reading = self.prompts.reading(pool)
        return None if reading is None else _ids(content, options, reading)

    async def soon(self, pool: Pool, content: object, options: Mapping[str, object]) -> "array[int] | None":
        """See `ports.TokenIds`."""
        try:
            async with asyncio.timeout(LOADING_S):
                await self.loaded(pool)
        except TimeoutError:
            return None
        return await self.prompts.with_reading(pool, partial(_ids, content, options))

    def decoder(self, pool: Pool) -> "TokenText | None":
        """See `ports.TokenIds`."""
        reading = self.prompts.reading(pool)
        return None if reading is None else TokenText(reading.tokenizer)


def _ids(content: Any, options: Mapping[str, object], reading: Reading) -> "array[int] | None":
    tokenizer = reading.tokenizer
    try:
        if not isinstance(content, str):
            segments = _chat_segments(content, options, reading)
            return None if segments is None else _joined(tokenizer.encode_all(map(str.encode, segments)))
        bare = tokenizer.encode_all(map(str.encode, tokenizer.cuts.segments(content)))
        if options.get("add_special_tokens") is False:
            return _joined(bare)
        return _joined([tokenizer.first, *bare, tokenizer.last])
    except UnicodeEncodeError as error:
        name = "prompt" if isinstance(content, str) else "messages"
        raise InvalidRequest(f"`{name}` holds text that is not Unicode: {error.reason}.", param=name) from error


def _chat_segments(messages: Messages, options: Mapping[str, object], reading: Reading) -> Sequence[str] | None:
    """None where the template is not here, or a message holds more than text."""
    if reading.template is None:
        return None
    plain, media_keys = plain_messages(messages, takes_parts=reading.template.takes_parts)
    if media_keys:
        return None
    segments = None if options or reading.turns is None else reading.turns.segments(plain)
    return reading.tokenizer.cuts.segments(reading.template.render(plain, options)) if segments is None else segments


def _joined(parts: "Iterable[array[int]]") -> "array[int]":
    ids = array("I")
    for part in parts:
        ids.extend(part)
    return ids


@dataclass(eq=False, slots=True)
class TokenText:
    """Implements `ports.Decoder`: the tokens of one output. What ends within a character waits for the rest of it."""

    tokenizer: PromptTokenizer
    _stream: DecodeStream = field(default_factory=lambda: DecodeStream(skip_special_tokens=True))
    _waiting: list[int] = field(default_factory=list)

    def push(self, ids: Sequence[int]) -> str:
        text = []
        for id in ids:
            piece = self.tokenizer.step(self._stream, id)
            if piece is None:
                self._waiting.append(id)
            else:
                text.append(piece)
                self._waiting.clear()
        return "".join(text)

    def flush(self) -> str:
        """An unfinished character as the replacement character, as engines give it out."""
        waiting, self._waiting = self._waiting, []
        return self.tokenizer.text(waiting) if waiting else ""
