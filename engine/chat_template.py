"""Chat messages to prompt text, as the model's own template writes them.

Knows jinja2 and what templates expect of their environment. Must not know tokens, HTTP or files. The template
comes with the model, so it runs in a sandbox, and whatever it raises becomes one kind of error.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.model.config import ModelError

Message = Mapping[str, Any]

_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})


class PromptError(ValueError):
    """What a client sent cannot become a prompt; the message is meant for that client (status 400)."""


@dataclass(eq=False, slots=True)
class ChatTemplate:
    """`special_tokens` are variables of the template by name (`bos_token`). Raises ModelError for a template
    that does not parse."""

    source: str
    special_tokens: Mapping[str, str]
    _compiled: jinja2.Template = field(init=False)

    def __post_init__(self) -> None:
        self._compiled = _compile(self.source)

    def render(self, messages: Sequence[Message], variables: Mapping[str, Any]) -> str:
        """The prompt text. Raises PromptError for what this model or its template refuses."""
        defaults = {"tools": None, "documents": None, **self.special_tokens}
        plain = [_plain_message(message, index) for index, message in enumerate(messages)]
        try:
            return self._compiled.render({**defaults, **variables, "messages": plain})
        except Exception as error:  # A template is a program: it may raise anything.
            raise PromptError(f"the chat template refuses these messages: {error}") from error

    def __repr__(self) -> str:
        return f"<ChatTemplate {len(self.source)} characters>"


def _compile(source: str) -> jinja2.Template:
    """As Transformers compiles it: the template comes with the model, so it runs in a sandbox."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationBlock]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise ModelError(f"the chat template does not parse: line {error.lineno}: {error.message}") from None


class _GenerationBlock(Extension):
    """`{% generation %}` marks what a model learns to say; in a prompt it is just its content."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_content"), [], [], body).set_lineno(line)

    def _content(self, caller: Callable[[], str]) -> str:
        return caller()


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own escapes HTML characters, which a model was not trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)


def _plain_message(message: Message, index: int) -> dict[str, Any]:
    """Templates of text models join `content` to strings, so lists of parts become one text, parts on lines
    of their own (as vLLM does it), and no content becomes an empty one."""
    content = message.get("content")
    if content is None:
        content = ""
    elif isinstance(content, list):
        content = "\n".join(_part_text(part, f"messages[{index}].content[{i}]") for i, part in enumerate(content))
    elif not isinstance(content, str):
        raise PromptError(f"messages[{index}].content must be a string or a list of text parts")
    plain = {**message, "content": content}
    if isinstance(calls := message.get("tool_calls"), list):
        plain["tool_calls"] = [_with_parsed_arguments(call) for call in calls]
    return plain


def _part_text(part: object, where: str) -> str:
    text = part.get("text") if isinstance(part, Mapping) and part.get("type") in _TEXT_PARTS else part
    if isinstance(text, str):
        return text
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    raise PromptError(f"{where} is of type {kind!r}; this model takes only text parts")


def _with_parsed_arguments(call: object) -> object:
    """Clients send a call's arguments as JSON text; templates expect the object."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        return call
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return call
    try:
        return {**call, "function": {**function, "arguments": json.loads(arguments or "{}")}}
    except (ValueError, RecursionError):
        return call
