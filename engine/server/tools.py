"""Tool calls in a model's text: told apart from what it says, whole or as the text comes in.

Knows how families of models write calls: Hermes and Qwen (`<tool_call>{...}</tool_call>`), Llama 3 (the answer is
the object). Must not know tokens, HTTP or the shapes of answers.
"""

import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from engine.server.call_scanner import CallScanner

OPENING, CLOSING = "<tool_call>", "</tool_call>"
# Llama separates objects with semicolons, and not always.
_BETWEEN_OBJECTS = r"[\s;,]*"


class ToolFormat(Enum):
    HERMES = "hermes"
    LLAMA3 = "llama3"


def format_of(chat_template: str | None) -> ToolFormat | None:
    """How a model with this template writes calls; None if the template takes no tools or writes them otherwise."""
    if chat_template is None or "tools" not in chat_template:
        return None
    if OPENING in chat_template:
        return ToolFormat.HERMES
    is_llama = "<|python_tag|>" in chat_template or ('"parameters":' in chat_template and '"name":' in chat_template)
    return ToolFormat.LLAMA3 if is_llama else None


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A part of call number `index`, from 0: first its `id` and `name`, then pieces of its arguments' JSON."""

    index: int
    arguments: str
    id: str | None = None
    name: str | None = None


Piece = str | CallPiece
"""What was said, or a part of a call."""


class _Mode(Enum):
    TEXT = "what is said"
    CALL = "the object of a call"
    CLOSING = "behind the object"


@dataclass(eq=False, slots=True)
class ToolReader:
    """Reads one answer. `max_calls` None is any number; calls beyond it are dropped.

    White space before calls is dropped too. What begins like a call and is none is text after all. Llama's form has
    no mark of its own: there only objects at the very beginning that name one of `names` are calls.
    """

    format: ToolFormat
    names: frozenset[str]
    max_calls: int | None = None
    num_calls: int = 0
    _mode: _Mode = _Mode.TEXT
    _held: str = ""
    _has_said: bool = False
    _scanner: CallScanner = field(default_factory=CallScanner)
    _raw: str = ""
    _num_sent: int = 0
    _is_named: bool = False

    def push(self, text: str) -> Iterator[Piece]:
        self._held += text
        while self._held:
            mode, length = self._mode, len(self._held)
            yield from self._read()
            if (self._mode, len(self._held)) == (mode, length):
                return

    def flush(self) -> Iterator[Piece]:
        """What was held back, at the end of the answer."""
        if self._mode is _Mode.CALL and not self._is_named:
            self._held, self._mode = self._raw + self._held, _Mode.TEXT
        if self._mode is _Mode.TEXT and (self._held.strip() or not self.num_calls):
            yield from self._say(self._held)
        self._held = ""

    def _read(self) -> Iterator[Piece]:
        if self._mode is _Mode.TEXT:
            yield from self._read_text()
        elif self._mode is _Mode.CALL:
            yield from self._read_call()
        else:
            self._read_closing()

    def _read_text(self) -> Iterator[Piece]:
        opening = self._find_opening()
        if opening is None:
            safe = self._num_safe()
            said, self._held = self._held[:safe], self._held[safe:]
            yield from self._say(said)
            return
        start, end = opening
        yield from self._say(self._held[:start].rstrip())
        self._raw, self._held = self._held[start:end], self._held[end:]
        self._mode, self._scanner, self._num_sent, self._is_named = _Mode.CALL, CallScanner(), 0, False

    def _find_opening(self) -> tuple[int, int] | None:
        """Where a call begins, and where its object does."""
        if self.format is ToolFormat.HERMES:
            start = self._held.find(OPENING)
            return None if start < 0 else (start, start + len(OPENING))
        object_ = re.match(_BETWEEN_OBJECTS + r"(?=\{)", self._held)
        return None if object_ is None or self._has_said else (0, object_.end())

    def _num_safe(self) -> int:
        """How much of the text surely belongs to no opening, nor to white space that may stand before one."""
        if self.format is ToolFormat.HERMES:
            return _num_before(self._held, OPENING)
        may_open = not self._has_said and re.fullmatch(_BETWEEN_OBJECTS, self._held)
        return 0 if may_open else len(self._held)

    def _say(self, text: str) -> Iterator[Piece]:
        if text:
            self._has_said = True
            yield text

    def _read_call(self) -> Iterator[Piece]:
        scanner, length = self._scanner, 0
        while scanner.is_open and length < len(self._held):
            scanner.push(self._held[length])
            length += 1
        self._raw, self._held = self._raw + self._held[:length], self._held[length:]
        if self._is_call():
            yield from self._pieces()
            if not scanner.is_open:
                self._mode = _Mode.CLOSING
        elif scanner.name is not None or not scanner.is_open:
            self._mode = _Mode.TEXT
            yield from self._say(self._raw)

    def _is_call(self) -> bool:
        name = self._scanner.name
        return name is not None and (self.format is ToolFormat.HERMES or name in self.names)

    def _pieces(self) -> Iterator[Piece]:
        """What is new of the call that is being read."""
        is_new, self._is_named = not self._is_named, True
        self.num_calls += is_new
        if self.max_calls is not None and self.num_calls > self.max_calls:
            return
        index = self.num_calls - 1
        if is_new:
            yield CallPiece(index, "", f"call_{secrets.token_hex(12)}", self._scanner.name)
        if arguments := self._scanner.arguments[self._num_sent :]:
            self._num_sent += len(arguments)
            yield CallPiece(index, arguments)

    def _read_closing(self) -> None:
        """Drops the tag with which Hermes closes a call; a model may forget it."""
        behind = self._held.lstrip()
        if self.format is ToolFormat.HERMES and behind.startswith(CLOSING):
            self._held, self._mode = behind.removeprefix(CLOSING), _Mode.TEXT
        elif self.format is ToolFormat.LLAMA3 or not CLOSING.startswith(behind):
            self._mode = _Mode.TEXT


def _num_before(text: str, opening: str) -> int:
    for length in range(min(len(text), len(opening) - 1), 0, -1):
        if opening.startswith(text[-length:]):
            text = text[:-length]
            break
    return len(text.rstrip())
