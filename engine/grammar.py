"""What an output may be made to keep to: JSON schemas, regular expressions, choices, grammars; compiled for one model.

Knows llguidance and the model's tokenizer. Must not know requests, logits or torch. Whatever a client may get wrong
is found here, before the request is queued. All calls block: those of Grammars for up to a second, off the loop.
"""

import json
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
        return cls.lark("start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in texts))

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
    _tokenizer: llguidance.LLTokenizer | None = None
    _compiled: "OrderedDict[str, llguidance.LLMatcher]" = field(default_factory=OrderedDict)
    _lock: Lock = field(default_factory=Lock)
    _executor: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="grammar")
    )

    def compile(self, grammar: Grammar) -> Structure:
        """Raises GrammarError saying what is wrong with it."""
        with self._lock:
            matcher = self._compiled.get(grammar.text)
            if matcher is None:
                matcher = self._compiled[grammar.text] = self._compile(grammar.text)
            self._compiled.move_to_end(grammar.text)
            if len(self._compiled) > _NUM_KEPT:
                self._compiled.popitem(last=False)
        return Structure(matcher.deep_copy(), -(-self.vocab_size // 32), self._executor)

    def _compile(self, text: str) -> llguidance.LLMatcher:
        if len(text) > MAX_GRAMMAR_CHARS:
            raise GrammarError(f"the grammar is longer than {MAX_GRAMMAR_CHARS} characters")
        if self._tokenizer is None:
            # Half a second, so not before the first request that needs it.
            self._tokenizer = llguidance.LLTokenizer(self.tokenizer_json(), self.vocab_size, list(self.eos_token_ids))
        matcher = llguidance.LLMatcher(self._tokenizer, text, log_level=0)
        if matcher.is_error():
            raise GrammarError(matcher.get_error()[:_MAX_ERROR_CHARS].strip())
        return matcher

    def __repr__(self) -> str:
        return f"<Grammars {len(self._compiled)} compiled>"
