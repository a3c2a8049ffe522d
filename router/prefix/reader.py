"""A request's input as a Prompt of its pool. Knows requests, pools and when to wait; nothing of replicas or indexes.

A pool whose tokenizer is not known is read as text, and so is a chat that the template refuses: the engine answers it.
"""

import ctypes
from array import array
from collections.abc import Callable
from functools import lru_cache, partial
from typing import TypeVar

from router.core import Pool, Prompt, Request
from router.errors import InvalidRequest
from router.prefix.blocks import CacheScope, prompt_of_text, prompt_of_tokens, text_of_chat
from router.prefix.engine_tokens import EngineTokens
from router.prefix.flights import Flights
from router.prefix.known import KnownTexts
from router.prefix.reading import Reading, Unread
from router.prefix.source import TokenizerSource

T = TypeVar("T")

# Kept at hand.
NUM_SCOPES = 256


class Prompts:
    """Implements `ports.PromptReader`. `configure` is for a thread, all else for the event loop.

    `cache_bytes`: most memory of what is known of texts. `inline_bytes`: more new text than this goes to a thread.
    """

    def __init__(self, *, cache_bytes: int = 64 * 2**20, inline_bytes: int = 32 * 1024) -> None:
        self._known = KnownTexts(cache_bytes)
        self._inline_bytes = inline_bytes
        self._readings: dict[str, Reading] = {}
        self._asked: dict[str, EngineTokens] = {}
        self._flights = Flights()
        self._scope = lru_cache(NUM_SCOPES)(CacheScope.of)

    def configure(self, pool: Pool, source: TokenizerSource) -> None:
        """From now on, read this pool's prompts so. Takes up to a second; raises SourceError naming the field."""
        # One assignment: a prompt is read with the old or with the new, never with half of each.
        self._readings[pool.model] = Reading.of(source, self._known)
        _give_back_memory()

    def ask(self, pool: Pool, engine: EngineTokens) -> None:
        """From now on, have this pool's prompts tokenized by its engine."""
        self._asked[pool.model] = engine

    def has_tokenizer(self, pool: Pool) -> bool:
        """Are this pool's prompts read as the replicas read them, and not as text?"""
        return pool.model in self._readings or pool.model in self._asked

    def reading(self, pool: Pool) -> Reading | None:
        """How the pool's prompts are read; None where its tokenizer is not here."""
        return self._readings.get(pool.model)

    async def with_reading(self, pool: Pool, work: Callable[[Reading], T]) -> T | None:
        """What this makes, in a thread, of how the pool's prompts are read; None where its tokenizer is not here."""
        reading = self._readings.get(pool.model)
        return None if reading is None else await self._flights.run(partial(work, reading))

    def close(self) -> None:
        """Text that waits for a thread is given up; idle threads end."""
        self._flights.close()

    def read_now(self, request: Request, pool: Pool, adapter: str | None) -> Prompt | None:
        """Length and block hashes of a request's messages or, in a completion, of the first of its prompts; None where
        there is so much new text that `read` must be awaited.

        Raises InvalidRequest: a `prompt` that is neither text nor token ids, text with a lone surrogate.
        """
        if (engine := self._asked_for(request, pool)) is not None:
            return engine.find(request, self._scope(pool.block_size, adapter, request.cache_salt))
        found = self._find(request, pool, adapter)
        return found if isinstance(found, Prompt) else self._finish_short(found)

    async def read(self, request: Request, pool: Pool, adapter: str | None) -> Prompt:
        """As `read_now`, but waits where there is much new text, or an engine is asked, and nowhere else."""
        if (engine := self._asked_for(request, pool)) is not None:
            scope = self._scope(pool.block_size, adapter, request.cache_salt)
            said = await engine.read(request, scope)
            if said is not None:
                return said
        found = self._find(request, pool, adapter)
        if isinstance(found, Prompt):
            return found
        prompt = self._finish_short(found)
        if prompt is not None:
            return prompt
        return found.finish(await self._flights.encode(found.tokenizer, found.keys, found.texts))

    def _asked_for(self, request: Request, pool: Pool) -> EngineTokens | None:
        """Who is to be asked: nobody where the request has its tokens already."""
        engine = self._asked.get(pool.model)
        if engine is None or (request.messages is None and not isinstance(_first_prompt(request.prompt), str)):
            return None
        return engine

    def _finish_short(self, unread: Unread) -> Prompt | None:
        """None where there is too much to tokenize on the event loop."""
        if sum(map(len, unread.texts)) > self._inline_bytes:
            return None
        return unread.finish(unread.tokenizer.encode_all(unread.texts))

    def _find(self, request: Request, pool: Pool, adapter: str | None) -> Prompt | Unread:
        scope = self._scope(pool.block_size, adapter, request.cache_salt)
        reading = self._readings.get(pool.model)
        try:
            if request.messages is None:
                return _find_completion(_first_prompt(request.prompt), scope, reading)
            if reading is None:
                return prompt_of_text(text_of_chat(request.messages, request.template_options), scope)
            try:
                return reading.find_chat(request.messages, request.template_options, scope)
            except InvalidRequest:
                return prompt_of_text(text_of_chat(request.messages, request.template_options), scope)
        except UnicodeEncodeError as error:
            field = "prompt" if request.messages is None else "messages"
            raise InvalidRequest(f"`{field}` holds text that is not Unicode: {error.reason}.", param=field) from error

    def __repr__(self) -> str:
        return f"<Prompts of {len(self._readings)} pools, {self._known!r}>"


def _give_back_memory() -> None:
    """What was needed to load a tokenizer, some 20 MB, goes back to the system; glibc alone must be told."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _find_completion(prompt: "str | array[int]", scope: CacheScope, reading: Reading | None) -> Prompt | Unread:
    if not isinstance(prompt, str):
        return prompt_of_tokens(prompt, scope)
    return prompt_of_text(prompt.encode(), scope) if reading is None else reading.find_completion(prompt, scope)


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
