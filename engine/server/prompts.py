"""From what a client sends as a prompt to token ids, off the event loop where that may take long.

Knows the tokenizer and which variables a template must not be given. Must not know what the ids are for.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from engine.server.errors import bad_request
from engine.server.openai import ChatRequest, Prompt, TokenizeRequest
from engine.tokenizer import PromptError, Tokenizer

# Below this, tokenizing takes less than the hop to a thread is worth.
_INLINE_CHARS = 8 << 10
_T = TypeVar("_T")
_RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"})


@dataclass(frozen=True, slots=True)
class Prompts:
    tokenizer: Tokenizer
    vocab_size: int

    async def of_chat(self, asked: ChatRequest | TokenizeRequest) -> list[int]:
        """Raises ApiError (400)."""
        messages = asked.messages or []
        _check_roles(messages)
        encode = partial(self.tokenizer.encode_chat, messages, **_template_options(asked))
        # However short the chat is: a template is a program, and what it does with it may take long.
        return self._checked(await _translated(asyncio.to_thread(encode), "messages"), "messages")

    async def of_text(self, prompt: Prompt, param: str, *, add_special_tokens: bool = True) -> list[int]:
        """Raises ApiError (400)."""
        (token_ids,) = await self.of_texts([prompt], param, add_special_tokens=add_special_tokens)
        return token_ids

    async def of_texts(
        self, prompts: Sequence[Prompt], param: str, *, add_special_tokens: bool = True
    ) -> list[list[int]]:
        """Raises ApiError (400)."""

        def encode() -> list[list[int]]:
            return [
                self.tokenizer.encode(prompt, add_special_tokens=add_special_tokens)
                if isinstance(prompt, str)
                else prompt
                for prompt in prompts
            ]

        num_chars = sum(len(prompt) for prompt in prompts)
        encoded = await _translated(_off_loop(encode, num_chars), param)
        return [self._checked(token_ids, param) for token_ids in encoded]

    def _checked(self, token_ids: list[int], param: str) -> list[int]:
        if not token_ids:
            raise bad_request(f"{param} is empty", param)
        if max(token_ids) >= self.vocab_size:
            raise bad_request(f"{param}: token id {max(token_ids)} is not below {self.vocab_size}", param)
        return token_ids


async def _off_loop(work: Callable[[], _T], num_chars: int) -> _T:
    """On a thread when the text is long."""
    return work() if num_chars < _INLINE_CHARS else await asyncio.to_thread(work)


async def _translated(encoding: Awaitable[_T], param: str) -> _T:
    """Raises ApiError (400) naming `param` for a PromptError."""
    try:
        return await encoding
    except PromptError as error:
        raise bad_request(str(error), param) from None


def _check_roles(messages: list[dict[str, Any]]) -> None:
    for index, message in enumerate(messages):
        if not isinstance(message.get("role"), str):
            raise bad_request(f"messages[{index}].role must be a string", f"messages[{index}].role")


def _template_options(asked: ChatRequest | TokenizeRequest) -> dict[str, Any]:
    """What the template sees beside the messages."""
    options = dict(asked.chat_template_kwargs or {})
    for name in sorted(_RESERVED & options.keys()):
        raise bad_request(f"chat_template_kwargs must not set {name}", "chat_template_kwargs")
    if asked.continue_final_message:
        if asked.add_generation_prompt:
            about = "continue_final_message and add_generation_prompt contradict each other"
            raise bad_request(about, "continue_final_message")
        options |= {"continue_final_message": True, "add_generation_prompt": False}
    elif asked.add_generation_prompt is not None:
        options["add_generation_prompt"] = asked.add_generation_prompt
    named = {"tools": asked.tools, "documents": asked.documents}
    return options | {name: value for name, value in named.items() if value}
