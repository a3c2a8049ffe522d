"""A request's input as a Prompt of its pool. Knows requests and pools; nothing of replicas, indexes or transports.

Only text that was not seen before is tokenized, and where that is long, in a thread. A pool whose tokenizer is not
known is read as text.
"""

import asyncio
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate

from router.core import Pool, Prompt, Request
from router.errors import InvalidRequest
from router.prefix.blocks import CacheScope, Media, prompt_of_text, prompt_of_tokens, text_of_chat
from router.prefix.messages import MEDIA_MARK, Messages, plain_messages
from router.prefix.source import TokenizerSource
from router.prefix.template import ChatTemplate
from router.prefix.tokens import SegmentCache, SegmentTokenizer

NUM_THREADS = 2
_AT_MARKS = re.compile(f"({MEDIA_MARK})")
# Conversations that have nothing in common but what the template writes.
_UNALIKE = ("Alpha", "7", "(")


@dataclass(frozen=True, slots=True)
class _Reading:
    """How one pool's prompts are read. `template_ids`: the tokens that every chat begins with."""

    tokenizer: SegmentTokenizer
    template: ChatTemplate | None
    template_ids: "array[int]"


class Prompts:
    """Implements `ports.PromptReader`. `configure` is for a thread, all else for the event loop.

    `cache_bytes`: most memory of tokenized text. `inline_chars`: more new text than this in a prompt goes to a thread.
    """

    def __init__(self, *, cache_bytes: int = 64 * 2**20, inline_chars: int = 32 * 1024) -> None:
        self._cache = SegmentCache(cache_bytes)
        self._inline_chars = inline_chars
        self._readings: dict[str, _Reading] = {}
        self._threads = ThreadPoolExecutor(NUM_THREADS, "tokenize")

    def configure(self, pool: Pool, source: TokenizerSource) -> None:
        """From now on, read this pool's prompts so. Takes up to a second; raises SourceError naming the field."""
        tokenizer = SegmentTokenizer(source.tokenizer)
        special = {"bos_token": source.bos_token, "eos_token": source.eos_token}
        known = {name: token for name, token in special.items() if token is not None}
        template = ChatTemplate(source.chat_template, known) if source.chat_template is not None else None
        # One assignment: a prompt is read with the old or with the new, never with half of each.
        self._readings[pool.model] = _Reading(tokenizer, template, _template_ids(tokenizer, template))

    def has_tokenizer(self, pool: Pool) -> bool:
        """Are this pool's prompts read as the replicas read them, and not as text?"""
        return pool.model in self._readings

    def close(self) -> None:
        """Text that waits for a thread is given up; idle threads end."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def read(self, request: Request, pool: Pool, adapter: str | None) -> Prompt:
        """Length and block hashes of a request's messages or, in a completion, of the first of its prompts.

        Raises InvalidRequest: `messages` that the chat template refuses, a `prompt` that is neither text nor token
        ids, text with a lone surrogate.
        """
        scope = CacheScope.of(request, pool, adapter)
        reading = self._readings.get(pool.model)
        try:
            if request.messages is None:
                return await self._read_completion(_first_prompt(request.prompt), scope, reading)
            if reading is None or reading.template is None:
                return prompt_of_text(text_of_chat(request.messages, request.template_options), scope)
            return await self._read_chat(request.messages, request.template_options, scope, reading, reading.template)
        except UnicodeEncodeError as error:
            field = "prompt" if request.messages is None else "messages"
            raise InvalidRequest(f"`{field}` holds text that is not Unicode: {error.reason}.", param=field) from error

    async def _read_completion(self, prompt: "str | array[int]", scope: CacheScope, reading: _Reading | None) -> Prompt:
        if not isinstance(prompt, str):
            return prompt_of_tokens(prompt, scope)
        if reading is None:
            return prompt_of_text(prompt.encode(), scope)
        encoded = await self._encode(reading.tokenizer, reading.tokenizer.split(prompt))
        return prompt_of_tokens(reading.tokenizer.framed(_joined(encoded)), scope)

    async def _read_chat(
        self,
        messages: Messages,
        options: Mapping[str, object],
        scope: CacheScope,
        reading: _Reading,
        template: ChatTemplate,
    ) -> Prompt:
        plain, media_keys = plain_messages(messages)
        text = template.render(plain, options)
        pieces = _AT_MARKS.split(text) if media_keys else [text]
        segments = [segment for piece in pieces for segment in reading.tokenizer.split(piece)]
        encoded = await self._encode(reading.tokenizer, segments)
        ids = _joined(encoded)
        media = _placed(media_keys, segments, encoded) if media_keys else ()
        num_template_tokens = _num_common(ids, reading.template_ids)
        return prompt_of_tokens(ids, scope, media=media, num_template_tokens=num_template_tokens)

    async def _encode(self, tokenizer: SegmentTokenizer, segments: Sequence[str]) -> "list[array[int]]":
        """Ids of each segment. Awaits only where there is much new text."""
        known = {segment: self._cache.get(tokenizer, segment) for segment in segments}
        new = [segment for segment, ids in known.items() if ids is None]
        if new:
            if sum(map(len, new)) <= self._inline_chars:
                encoded = tokenizer.encode_all(new)
            else:
                loop = asyncio.get_running_loop()
                encoded = await loop.run_in_executor(self._threads, tokenizer.encode_all, new)
            self._cache.put(tokenizer, new, encoded)
            known.update(zip(new, encoded, strict=True))
        return [ids for segment in segments if (ids := known[segment]) is not None]

    def __repr__(self) -> str:
        return f"<Prompts of {len(self._readings)} pools, {self._cache!r}>"


def _template_ids(tokenizer: SegmentTokenizer, template: ChatTemplate | None) -> "array[int]":
    """What chats that are unalike begin with all the same; empty where the template refuses such simple ones."""
    if template is None:
        return array("I")
    try:
        texts = [template.render([{"role": "user", "content": content}], {}) for content in _UNALIKE]
    except InvalidRequest:
        return array("I")
    first, *others = [_joined(tokenizer.encode_all(tokenizer.split(text))) for text in texts]
    return first[: min(_num_common(first, other) for other in others)]


def _num_common(ids: "array[int]", others: "array[int]") -> int:
    """Length of the common beginning."""
    if ids[: len(others)] == others:
        return len(others)
    return next((at for at, (one, other) in enumerate(zip(ids, others, strict=False)) if one != other), len(ids))


def _placed(media_keys: Sequence[bytes], segments: Sequence[str], encoded: "Sequence[array[int]]") -> list[Media]:
    """Each key with the position of its mark. Where the template left some out or repeated them, none can be told
    from another, and all count from the beginning."""
    starts = accumulate(map(len, encoded), initial=0)
    positions = [start for start, segment in zip(starts, segments, strict=False) if segment == MEDIA_MARK]
    if len(positions) != len(media_keys):
        positions = [0] * len(media_keys)
    return list(zip(positions, media_keys, strict=True))


def _first_prompt(prompt: object) -> "str | array[int]":
    """`prompt` is text, token ids, or a list of either, of which the first stands for all."""
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return prompt
    try:
        if isinstance(prompt, list):
            return array("I", prompt)
    except (TypeError, OverflowError):
        pass
    raise InvalidRequest("`prompt` must be a string, token ids of 0..2**32-1, or a list of either.", param="prompt")


def _joined(encoded: "Iterable[array[int]]") -> "array[int]":
    ids = array("I")
    for segment in encoded:
        ids.extend(segment)
    return ids
