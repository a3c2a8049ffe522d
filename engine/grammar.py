"""What an output may be made to keep to: JSON schemas, regular expressions, choices, grammars; compiled for one model.

Knows llguidance and the model's tokenizer. Must not know requests, logits or torch. Whatever a client may get wrong
is found here, before the request is queued; what only shows as tokens come ends that request (structure.py). All
calls block: those of Grammars for up to some seconds, off the loop, on `compilers`.
"""

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Self

import llguidance
from llguidance.gbnf_to_lark import any_to_lark

from engine.structure import Structure

MAX_GRAMMAR_CHARS = 1 << 20
_MAX_ERROR_CHARS = 500
_NUM_KEPT = 64
_NUM_THREADS = 2
# A small model that may write any amount of white space will write nothing else.
_JSON_WHITESPACE = r"[\x20\x0A\x0D\x09]{0,32}"


class GrammarError(ValueError):
    """What a client sent is no grammar, or one that the engine cannot follow; the message is meant for that client."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """In llguidance's own notation. Constructors raise GrammarError only for what cannot even be written down."""

    text: str

    @classmethod
    def json_schema(cls, schema: str | Mapping[str, Any] | bool) -> Self:
        """`schema` as JSON text or as what that stands for."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        try:
            options: Any = {"whitespace_pattern": _JSON_WHITESPACE}
            return cls(llguidance.LLMatcher.grammar_from_json_schema(text, overrides=options))
        except ValueError as error:
            raise GrammarError(f"the schema is not JSON: {error}") from None

    @classmethod
    def json_object(cls) -> Self:
        return cls.json_schema({"type": "object"})

    @classmethod
    def regex(cls, pattern: str) -> Self:
        return cls(llguidance.LLMatcher.grammar_from_regex(pattern))

    @classmethod
    def choice(cls, texts: Sequence[str]) -> Self:
        """As one pattern: of thousands of rules, a parser would refuse to look at all at once."""
        return cls.regex("|".join(map(re.escape, texts)))

    @classmethod
    def lark(cls, text: str) -> Self:
        """Lark, or GBNF (`root ::= ...`)."""
        try:
            return cls(llguidance.LLMatcher.grammar_from_lark(any_to_lark(text)))
        except Exception as error:  # The converter raises whatever its parser trips over.
            raise GrammarError(f"the grammar does not parse: {error}") from None


@dataclass(eq=False, slots=True)
class Grammars:
    """Of one model: `tokenizer_json` gives its tokenizer.json, `vocab_size` is the width of its logits."""

    tokenizer_json: Callable[[], str]
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    # Not asyncio's own threads: grammars that take long would keep all prompts waiting.
    compilers: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="grammar-compiler")
    )
    _tokenizer: llguidance.LLTokenizer | None = None
    _compiled: "OrderedDict[str, llguidance.LLMatcher]" = field(default_factory=OrderedDict)
    _lock: Lock = field(default_factory=Lock)
    _executor: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="grammar")
    )

    def compile(self, grammar: Grammar, field: str) -> Structure:
        """`field` of the request asks for it. Raises GrammarError saying what is wrong with it."""
        with self._lock:
            kept = self._compiled.get(grammar.text)
        structure = None if kept is None else self._begun(kept, field)
        if kept is None or structure is None:
            kept = self._compile(grammar.text)
            structure = self._begun(kept, field)
        if structure is None:
            raise GrammarError("it takes too much to follow")
        self._keep(grammar.text, kept)
        return structure

    def _begun(self, kept: llguidance.LLMatcher, field: str) -> Structure | None:
        """With its first mask, which may take a second. None where the matcher gives up at once: so does each copy of
        one that gave up before, as they share what they know."""
        structure = Structure(kept.deep_copy(), -(-self.vocab_size // 32), self._executor, field)
        structure.begin()
        return None if structure.matcher.is_error() else structure

    def _keep(self, text: str, matcher: llguidance.LLMatcher) -> None:
        with self._lock:
            self._compiled[text] = matcher
            self._compiled.move_to_end(text)
            if len(self._compiled) > _NUM_KEPT:
                self._compiled.popitem(last=False)

    def _compile(self, text: str) -> llguidance.LLMatcher:
        if len(text) > MAX_GRAMMAR_CHARS:
            raise GrammarError(f"the grammar is longer than {MAX_GRAMMAR_CHARS} characters")
        matcher = llguidance.LLMatcher(self._known_tokenizer(), text, log_level=0)
        if matcher.is_error():
            raise GrammarError(matcher.get_error()[:_MAX_ERROR_CHARS].strip())
        return matcher

    def _known_tokenizer(self) -> llguidance.LLTokenizer:
        with self._lock:
            if self._tokenizer is None:
                # Half a second, so not before the first request that needs it.
                ends = list(self.eos_token_ids)
                self._tokenizer = llguidance.LLTokenizer(self.tokenizer_json(), self.vocab_size, ends)
            return self._tokenizer

    def __repr__(self) -> str:
        return f"<Grammars {len(self._compiled)} compiled>"
