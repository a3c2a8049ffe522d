"""Prompts as the engine itself tokenizes them, where nobody has its tokenizer: by asking its /tokenize. Knows requests,
answers seen before and when not to ask; how to ask is handed in.

Each new prompt costs a round trip; one that is slow or fails is read as text, and for a while nobody is asked.
"""

import asyncio
import time
from array import array
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import msgspec
from xxhash import xxh3_64_intdigest

from router.core import Prompt, Request
from router.prefix.blocks import CacheScope, prompt_of_tokens

TIMEOUT_S = 1.0
# After a failure.
PAUSE_S = 5.0
ENTRY_BYTES = 300
TOKEN_BYTES = 4

Body = Mapping[str, object]
Ask = Callable[[Body], Awaitable["array[int] | None"]]
"""The token ids of a /tokenize body; None where they cannot be had."""


@dataclass(eq=False, slots=True)
class EngineTokens:
    """Of one pool. `max_bytes` bounds the ids that are kept."""

    ask: Ask
    max_bytes: int
    clock: Callable[[], float] = time.monotonic
    _known: "OrderedDict[int, array[int]]" = field(default_factory=OrderedDict, init=False)
    _num_bytes: int = field(default=0, init=False)
    _paused_until: float = field(default=0.0, init=False)

    def find(self, request: Request, scope: CacheScope) -> Prompt | None:
        """None where it was not asked for before."""
        ids = self._known.get(_key(request))
        if ids is None:
            return None
        self._known.move_to_end(_key(request))
        return prompt_of_tokens(ids, scope)

    async def read(self, request: Request, scope: CacheScope) -> Prompt | None:
        """None where the engine does not say."""
        found = self.find(request, scope)
        if found is not None or self.clock() < self._paused_until:
            return found
        ids = None
        try:
            async with asyncio.timeout(TIMEOUT_S):
                ids = await self.ask(tokenize_body(request))
        except TimeoutError:
            pass
        if ids is None:
            self._paused_until = self.clock() + PAUSE_S
            return None
        self._keep(_key(request), ids)
        return prompt_of_tokens(ids, scope)

    def _keep(self, key: int, ids: "array[int]") -> None:
        if key not in self._known:
            self._num_bytes += ENTRY_BYTES + TOKEN_BYTES * len(ids)
        self._known[key] = ids
        while self._num_bytes > self.max_bytes and self._known:
            _, gone = self._known.popitem(last=False)
            self._num_bytes -= ENTRY_BYTES + TOKEN_BYTES * len(gone)

    def __repr__(self) -> str:
        return f"<EngineTokens {len(self._known)} prompts>"


def tokenize_body(request: Request) -> Body:
    """What vLLM's and SGLang's /tokenize take."""
    if request.messages is None:
        return {"model": request.model, "prompt": request.prompt}
    options = dict(request.template_options)
    named: dict[str, object] = {
        name: options.pop(name) for name in ("tools", "add_generation_prompt") if name in options
    }
    rest: dict[str, object] = {"chat_template_kwargs": options} if options else {}
    return {"model": request.model, "messages": request.messages, "add_generation_prompt": True, **named, **rest}


def ids_in(answer: bytes) -> "array[int] | None":
    """The ids of a /tokenize answer; None for what is none."""
    try:
        fields = msgspec.json.decode(answer)
        return array("I", fields["tokens"])
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, OverflowError):
        return None


def _key(request: Request) -> int:
    body = tokenize_body(request)
    return xxh3_64_intdigest(msgspec.json.encode(body, order="deterministic"))
