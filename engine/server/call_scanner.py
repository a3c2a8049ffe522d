"""One tool call as its JSON comes in, piece by piece: `{"name": "f", "arguments": {...}}`, keys in any order.

Knows JSON's strings and brackets. Must not know where calls stand in a text, tokens or wire shapes. The arguments
are passed on as the model wrote them, not parsed and written again: that is what lets them be streamed.
"""

import json
from dataclasses import dataclass, field
from enum import Enum

_NAME_KEY = "name"
_ARGUMENT_KEYS = frozenset({"arguments", "parameters"})
_OTHER_KEYS = frozenset({"type", "id"})
_SPACE = " \t\r\n"


class CallState(Enum):
    BEFORE = "before the object"
    KEY = "where a key or the end of the object must come"
    IN_KEY = "in a key"
    COLON = "where a colon must come"
    VALUE = "where a value must come"
    IN_VALUE = "in a value"
    AFTER_VALUE = "where a comma or the end of the object must come"
    COMPLETE = "behind the object"
    MALFORMED = "no call"


@dataclass(eq=False, slots=True)
class CallScanner:
    """`name` is None until it is known. `arguments` grows; it is meant to be read once the name is known."""

    state: CallState = CallState.BEFORE
    name: str | None = None
    arguments: str = ""
    _key: str = ""
    _value: list[str] = field(default_factory=list)
    _depth: int = 0
    _is_in_string: bool = False
    _is_escaped: bool = False

    @property
    def is_open(self) -> bool:
        return self.state not in (CallState.COMPLETE, CallState.MALFORMED)

    def push(self, character: str) -> None:
        """The next character, as long as the object is open."""
        if self.state is CallState.IN_VALUE:
            self._in_value(character)
        elif self.state is CallState.IN_KEY:
            self._in_key(character)
        elif character not in _SPACE:
            self._between(character)

    def _between(self, character: str) -> None:
        state = self.state
        if state is CallState.VALUE:
            self._begin_value(character)
        elif (state, character) == (CallState.BEFORE, "{") or (state, character) == (CallState.AFTER_VALUE, ","):
            self.state = CallState.KEY
        elif (state, character) == (CallState.KEY, '"'):
            self.state, self._key = CallState.IN_KEY, ""
        elif (state, character) == (CallState.COLON, ":"):
            self.state = CallState.VALUE
        elif state in (CallState.KEY, CallState.AFTER_VALUE) and character == "}":
            self._end()
        else:
            self.state = CallState.MALFORMED

    def _in_key(self, character: str) -> None:
        if character != '"':
            self._key += character
        elif self._key == _NAME_KEY or self._key in _ARGUMENT_KEYS | _OTHER_KEYS:
            self.state = CallState.COLON
        else:
            # Any other object is an answer and not a call.
            self.state = CallState.MALFORMED

    def _begin_value(self, character: str) -> None:
        if character in ",}]:":
            self.state = CallState.MALFORMED
            return
        self.state, self._value = CallState.IN_VALUE, []
        self._depth, self._is_in_string = 0, False
        self._in_value(character)

    def _in_value(self, character: str) -> None:
        if self._is_in_string:
            self._is_in_string = self._is_escaped or character != '"'
            self._is_escaped = character == "\\" and not self._is_escaped
        elif character == '"':
            self._is_in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]" and self._depth:
            self._depth -= 1
        elif self._depth == 0 and character in ",}":
            self._end_value()
            self._between(character)
            return
        self._take(character)

    def _take(self, character: str) -> None:
        self._value.append(character)
        # Only an object is passed on as it comes: arguments spelled as text must be read as a whole first.
        if self._key in _ARGUMENT_KEYS and self._value[0] == "{" and not (self._depth == 0 and character in _SPACE):
            self.arguments += character

    def _end_value(self) -> None:
        self.state = CallState.AFTER_VALUE
        text = "".join(self._value).strip()
        if self._key == _NAME_KEY:
            name = _parsed(text)
            if isinstance(name, str) and name:
                self.name = name
            else:
                self.state = CallState.MALFORMED
        elif self._key in _ARGUMENT_KEYS and not text.startswith("{"):
            value = _parsed(text)
            self.arguments = value if isinstance(value, str) else "{}" if value is None else text

    def _end(self) -> None:
        self.state = CallState.MALFORMED if self.name is None else CallState.COMPLETE
        self.arguments = self.arguments or "{}"

    def __repr__(self) -> str:
        return f"<CallScanner {self.name} {self.state.name}>"


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
