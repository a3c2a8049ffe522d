"""Which tools a chat may or must call, and how its answer is then read.

Knows `tools`, `tool_choice` and `parallel_tool_calls`. Must not know how answers are read (tools.py) or grammars
followed.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from engine.grammar import Grammar
from engine.server.errors import bad_request
from engine.server.fields import wrong_field
from engine.server.openai import ChatRequest, Function, NamedTool, Tool
from engine.server.tools import CLOSING, OPENING, ToolFormat, ToolReader

# Schemas refer to these from their root, wherever the schema itself is put.
_DEFINITIONS = ("$defs", "definitions")


@dataclass(frozen=True, slots=True)
class Calling:
    """`grammar` is what an answer that must call keeps to."""

    format: ToolFormat
    names: frozenset[str]
    max_calls: int | None
    grammar: Grammar | None

    def reader(self) -> ToolReader:
        return ToolReader(self.format, self.names, self.max_calls)


def calling_of(request: ChatRequest, format: ToolFormat | None) -> Calling | None:
    """None where nothing can be called. `format` is that of the model. Raises ApiError (400)."""
    choice = request.tool_choice
    if not request.tools:
        if choice not in (None, "none", "auto"):
            raise bad_request("tool_choice asks for a call, but there are no tools", "tool_choice")
        return None
    functions = [tool.function for tool in _tools(request.tools)]
    if format is None:
        about = "the chat template of this model takes no tools, or its form of calls is not known"
        raise bad_request(f"tools: {about} (--chat-template)", "tools", "unsupported_parameter")
    if choice == "none":
        return None
    max_calls = None if request.parallel_tool_calls in (None, True) else 1
    if isinstance(choice, NamedTool):
        functions, max_calls = [_named(functions, choice.function.name)], 1
    is_forced = choice == "required" or isinstance(choice, NamedTool)
    grammar = _grammar(format, functions, max_calls) if is_forced else None
    return Calling(format, frozenset(function.name for function in functions), max_calls, grammar)


def _tools(tools: list[dict[str, Any]]) -> list[Tool]:
    try:
        return msgspec.convert(tools, list[Tool])
    except msgspec.ValidationError as error:
        raise wrong_field(str(error), "tools") from None


def _named(functions: Sequence[Function], name: str) -> Function:
    for function in functions:
        if function.name == name:
            return function
    raise bad_request(f"tool_choice: there is no tool {name}", "tool_choice")


def _grammar(format: ToolFormat, functions: Sequence[Function], max_calls: int | None) -> Grammar:
    """One call, or several as the model's family separates them."""
    separator, call = ('"\\n"', _HERMES_CALL) if format is ToolFormat.HERMES else ('"; "', "object")
    rules = [f"object{index}: %json {json.dumps(_schema(format, each))}" for index, each in enumerate(functions)]
    names = " | ".join(f"object{index}" for index in range(len(functions)))
    start = "call" if max_calls == 1 else f"call ({separator} call)*"
    return Grammar.lark("\n".join([f"start: {start}", f"call: {call}", f"object: {names}", *rules]))


_HERMES_CALL = f'"{OPENING}\\n" object "\\n{CLOSING}"'


def _schema(format: ToolFormat, function: Function) -> dict[str, Any]:
    key = "arguments" if format is ToolFormat.HERMES else "parameters"
    arguments = dict(function.parameters or {"type": "object", "properties": {}, "additionalProperties": False})
    definitions = {name: arguments.pop(name) for name in _DEFINITIONS if name in arguments}
    return {
        "type": "object",
        "properties": {"name": {"const": function.name}, key: arguments},
        "required": ["name", key],
        "additionalProperties": False,
        **definitions,
    }
