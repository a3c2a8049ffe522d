"""Chat messages to prompt text as a model's own template writes it: what router and engine must agree on to the byte.

Knows what Hugging Face's Transformers gives templates, and the shapes in which clients send messages. Knows nothing of
tokens, replicas or HTTP. A template comes with a model and is not trusted: it runs in a sandbox, and whatever it
raises becomes a RenderError.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

from pointsman.template_sandbox import TemplateSandbox, budget, measured

Message = Mapping[str, Any]

MAX_ERROR_CHARS = 500
_MAX_INDENT = 64
_UNSTEADY_NAMES = frozenset({"strftime_now", "random"})
_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})
# Names a message's reasoning comes under; templates read the first, some the second.
_REASONING = ("reasoning_content", "thinking", "reasoning")
_CONTINUED = "CONTINUE_FINAL_MESSAGE_TAG "
_TRIAL = ({"type": "text", "text": "Zq0qZ"}, {"type": "text", "text": "Zq1qZ"})


class TemplateSourceError(ValueError):
    """A template that does not compile; the message names the line."""


class RenderError(ValueError):
    """What a template refuses, or fails at; the message is for whoever sent the messages."""


class ChatTemplate:
    """One model's template. `special_tokens` are variables of it by name (`bos_token`).

    `literals`: the texts that it spells in expressions, so all that it can look for. `is_steady`: does it write the
    same for the same messages at any time? `takes_tools`: does it look at them? `takes_parts`: does it put the parts
    of a content together by itself, so that it must be given the list?
    """

    __slots__ = ("_special_tokens", "_template", "is_steady", "literals", "source", "takes_parts", "takes_tools")

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Raises TemplateSourceError."""
        self.source = source
        self._special_tokens = dict(special_tokens)
        self._template, tree = _compile(source)
        self.literals = {const.value for const in tree.find_all(nodes.Const) if isinstance(const.value, str)}
        names = {node.name for node in tree.find_all(nodes.Name)} | {node.name for node in tree.find_all(nodes.Filter)}
        self.is_steady = _UNSTEADY_NAMES.isdisjoint(names)
        self.takes_tools = "tools" in names
        self.takes_parts = self._puts_parts_together()

    def render(self, messages: Sequence[Message], options: Mapping[str, object]) -> str:
        """The prompt's text, of messages as `plain_message` makes them. `options` are the template's other variables:
        `tools`, `documents`, those of `chat_template_kwargs`, `add_generation_prompt` (True where absent), and
        `continue_final_message`, with which the text ends where the last content does.

        Raises RenderError.
        """
        variables = {**self._special_tokens, "add_generation_prompt": True, **options}
        # To a template, a list of nothing is not the same as none.
        variables |= {name: options.get(name) or None for name in ("tools", "documents")}
        if variables.pop("continue_final_message", False):
            return self._continued(messages, {**variables, "add_generation_prompt": False})
        return self._rendered(messages, variables)

    def _rendered(self, messages: Sequence[Message], variables: Mapping[str, object]) -> str:
        try:
            with budget():
                return self._template.render({**variables, "messages": messages})
        except Exception as error:  # A template is a program: it may raise anything.
            reason = str(error)[:MAX_ERROR_CHARS] or type(error).__name__
            raise RenderError(f"the chat template of this model refuses the messages: {reason}") from error

    def _continued(self, messages: Sequence[Message], variables: Mapping[str, object]) -> str:
        """As Transformers does it: up to a mark behind the last content."""
        *before, last = messages
        text = self._rendered([*before, _marked(last)], variables)
        start = text.rfind(_CONTINUED.strip())
        if start < 0:
            raise RenderError("continue_final_message: the chat template leaves out the end of the last message")
        kept = text[:start]
        # A template that trims the content has trimmed what stood before the mark, too.
        return kept if text.startswith(_CONTINUED, start) else kept.rstrip()

    def _puts_parts_together(self) -> bool:
        try:
            text = self._rendered([{"role": "user", "content": list(_TRIAL)}], {**self._special_tokens})
        except RenderError:
            return False
        marks = [part["text"] for part in _TRIAL]
        return all(mark in text for mark in marks) and "type" not in text[text.index(marks[0]) : text.index(marks[1])]

    def __repr__(self) -> str:
        return f"<ChatTemplate {len(self.source)} characters>"


def text_of_part(part: object) -> str | None:
    """The text of a part of a content, None for one that is no text."""
    if isinstance(part, Mapping) and part.get("type") in _TEXT_PARTS:
        part = part.get("text")
    return part if isinstance(part, str) else None


def plain_message(message: Message, spell: Callable[[object], str], *, takes_parts: bool) -> dict[str, Any]:
    """A message as templates take it. Parts of a content, each spelled as text, become one text with a line each, as
    vLLM does it, unless the template takes them as they are. No content is an empty one. The arguments of calls become
    objects; values of null are left out."""
    plain = {name: value for name, value in message.items() if value is not None}
    content = plain.setdefault("content", "")
    if isinstance(content, list):
        texts = [spell(part) for part in content]
        plain["content"] = [{"type": "text", "text": text} for text in texts] if takes_parts else "\n".join(texts)
    if isinstance(calls := plain.get("tool_calls"), list):
        plain["tool_calls"] = [_with_parsed_arguments(call) for call in calls]
    reasoning = next((plain[name] for name in _REASONING if name in plain), None)
    return plain if reasoning is None else {"thinking": reasoning, **plain, "reasoning_content": reasoning}


def _with_parsed_arguments(call: Any) -> Any:
    """Clients send a call's arguments as JSON text; templates expect the object."""
    try:
        function = call["function"]
        return {**call, "function": {**function, "arguments": json.loads(function["arguments"] or "{}")}}
    except (KeyError, TypeError, ValueError, RecursionError):
        return call


def _marked(message: Message) -> Message:
    content = message.get("content")
    if isinstance(content, list) and content:
        *parts, last = content
        return {**message, "content": [*parts, {**last, "text": last["text"] + _CONTINUED}]}
    return {**message, "content": f"{content or ''}{_CONTINUED}"}


def _compile(source: str) -> tuple[Template, nodes.Template]:
    environment = TemplateSandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationBlock]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    try:
        # A tree of its own: compiling takes constants together.
        return environment.from_string(source), environment.parse(source)
    except TemplateSyntaxError as error:
        raise TemplateSourceError(f"line {error.lineno}: {error.message}") from error
    except RecursionError as error:
        raise TemplateSourceError("it is nested too deeply") from error


class _GenerationBlock(Extension):
    """`{% generation %}` marks what a model learns to say; in a prompt it is its content."""

    tags = {"generation"}  # noqa: RUF012

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
    """Jinja's own would escape HTML, which models were not trained on."""
    measured(value)
    indent = None if indent is None else min(indent, _MAX_INDENT)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)
