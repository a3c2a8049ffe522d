"""Chats and completions: from the request to the runs that make its answer.

Knows how options, prompts, tools and structure come together. Must not know HTTP, streaming or the engine's loop.
"""

import asyncio
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from engine.grammar import Grammar, GrammarError, Grammars
from engine.sampling import Sampling
from engine.sequence import Request
from engine.server.answers import ChatChoice, Choice, CompletionChoice, Head
from engine.server.calling import Calling, calling_of
from engine.server.errors import bad_request
from engine.server.generation import Generation, Run
from engine.server.logprobs import Spelling
from engine.server.openai import ChatRequest, CompletionRequest, GenerationRequest, Prompt, prompts_of
from engine.server.options import Limits, check_choices, sampling_of
from engine.server.prompts import Prompts
from engine.server.structured import grammar_of
from engine.server.tools import ToolFormat
from engine.structure import Structure
from engine.text import TextStream
from engine.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Arrival:
    """When a request came, on the engine's clock, and which adapter its model names."""

    at_s: float
    adapter: str | None = None


@dataclass(frozen=True, slots=True)
class Planner:
    """Makes Generations. All its methods raise ApiError (400) naming the field at fault."""

    tokenizer: Tokenizer
    prompts: Prompts
    grammars: Grammars
    limits: Limits
    tool_format: ToolFormat | None

    async def chat(self, asked: ChatRequest, arrival: Arrival) -> Generation:
        check_choices(asked, self.limits)
        calling = calling_of(asked, self.tool_format)
        structure = await self._structure(asked, calling)
        tokens = await self.prompts.of_chat(asked)
        sampling = sampling_of(asked, len(tokens), self.limits)
        head = Head(f"chatcmpl-{secrets.token_hex(12)}", "chat.completion", asked.model, int(time.time()))

        def choice(index: int) -> Choice:
            return ChatChoice(index, self._spelling(sampling), None if calling is None else calling.reader())

        runs = [
            self._run(asked, arrival, head.id, tokens, _seeded(sampling, index), choice(index), structure)
            for index in range(asked.num_choices)
        ]
        return Generation(head, [runs], asked.wants_usage)

    async def completion(self, asked: CompletionRequest, arrival: Arrival) -> Generation:
        check_choices(asked, self.limits)
        structure = await self._structure(asked, None)
        head = Head(f"cmpl-{secrets.token_hex(12)}", "text_completion", asked.model, int(time.time()))
        groups: list[list[Run]] = []
        prompts = prompts_of(asked.prompt, "prompt", num_choices=asked.num_choices)
        add_special_tokens = asked.add_special_tokens is not False
        encoded = await self.prompts.of_texts(prompts, "prompt", add_special_tokens=add_special_tokens)
        for prompt, tokens in zip(prompts, encoded, strict=True):
            sampling = sampling_of(asked, len(tokens), self.limits)
            first = len(groups) * asked.num_choices
            choices = [self._completion_choice(asked, first + i, prompt, tokens) for i in range(asked.num_choices)]
            groups.append(
                [
                    self._run(asked, arrival, head.id, tokens, _seeded(sampling, i), choice, structure)
                    for i, choice in enumerate(choices)
                ]
            )
        return Generation(head, groups, asked.wants_usage)

    def _run(
        self,
        asked: GenerationRequest,
        arrival: Arrival,
        name: str,
        tokens: Sequence[int],
        sampling: Sampling,
        choice: Choice,
        structure: Structure | None,
    ) -> Run:
        request = Request(
            id=f"{name}-{choice.index}" if choice.index else name,
            prompt=tuple(tokens),
            sampling=sampling,
            arrived_s=arrival.at_s,
            priority=asked.priority or 0,
            salt=asked.cache_salt,
            adapter=arrival.adapter,
        )
        decoder = self.tokenizer.decoder(skip_special_tokens=asked.skip_special_tokens is not False)
        text = TextStream(decoder, sampling.stop, keeps_stop=bool(asked.include_stop_str_in_output))
        return Run(choice, request, text, None if structure is None else structure.copy())

    def _completion_choice(
        self, asked: CompletionRequest, index: int, prompt: Prompt, tokens: list[int]
    ) -> CompletionChoice:
        spelling = None if asked.logprobs is None else Spelling(self.tokenizer.token_bytes, self.tokenizer.decoder())
        if not asked.echo:
            return CompletionChoice(index, spelling)
        text = prompt if isinstance(prompt, str) else self.tokenizer.decode(tokens)
        return CompletionChoice(index, spelling, text, tokens, is_echo_only=asked.max_tokens == 0)

    def _spelling(self, sampling: Sampling) -> Spelling | None:
        if sampling.num_top_logprobs is None:
            return None
        return Spelling(self.tokenizer.token_bytes, self.tokenizer.decoder())

    async def _structure(self, asked: GenerationRequest, calling: Calling | None) -> Structure | None:
        wish = grammar_of(asked)
        if calling is not None and calling.grammar is not None:
            if wish is not None:
                raise bad_request(f"{wish[0]} and tool_choice contradict each other", wish[0])
            wish = ("tools", calling.grammar)
        return None if wish is None else await self._compiled(*wish)

    async def _compiled(self, param: str, grammar: Grammar) -> Structure:
        try:
            compiling = partial(self.grammars.compile, grammar, param)
            return await asyncio.get_running_loop().run_in_executor(self.grammars.compilers, compiling)
        except GrammarError as error:
            raise bad_request(f"{param}: {error}", param) from None


def _seeded(sampling: Sampling, index: int) -> Sampling:
    """Choices of one prompt differ by their seeds only."""
    if index == 0:
        return sampling
    return replace(sampling, seed=(sampling.seed + index + 2**63) % 2**64 - 2**63)
