"""Chat messages to the text that an engine would make of them. Knows Jinja and what Hugging Face templates expect.

Knows nothing of tokens, pools or replicas. A template comes with a model and is not trusted: it runs in a sandbox,
and whatever it raises becomes an InvalidRequest.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import NoReturn

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from router.errors import InvalidRequest
from router.prefix.source import SourceError

MAX_REPEATED_ITEMS = 2**20
MAX_POWER_BITS = 2**10
MAX_ERROR_CHARS = 500
_UNSTEADY_NAMES = frozenset({"strftime_now", "lipsum", "random"})

Messages = Sequence[Mapping[str, object]]


class ChatTemplate:
    """One model's template. `special_tokens` are variables of it by name (`bos_token`).

    `literals`: the texts that it spells in expressions, so all that it can look for. `is_steady`: does it write the
    same for the same messages at any time?
    """

    __slots__ = ("_special_tokens", "_template", "is_steady", "literals")

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Raises SourceError for a template that does not parse."""
        self._special_tokens = dict(special_tokens)
        self._template, tree = _compile(source)
        self.literals = {const.value for const in tree.find_all(nodes.Const) if isinstance(const.value, str)}
        names = {node.name for node in tree.find_all(nodes.Name)} | {node.name for node in tree.find_all(nodes.Filter)}
        self.is_steady = _UNSTEADY_NAMES.isdisjoint(names)

    def render(self, messages: Messages, options: Mapping[str, object]) -> str:
        """The prompt's text. `options` are the template's other variables: `tools`, `documents`, those of
        `chat_template_kwargs`, `add_generation_prompt` (True where absent).

        Raises InvalidRequest naming `messages` where the template refuses them.
        """
        defaults = {"tools": None, "documents": None, "add_generation_prompt": True}
        try:
            return self._template.render({**self._special_tokens, **defaults, **options, "messages": messages})
        except Exception as error:  # A template is a program: it may raise anything.
            reason = str(error)[:MAX_ERROR_CHARS] or type(error).__name__
            message = f"The chat template of this model refuses the messages: {reason}"
            raise InvalidRequest(message, param="messages") from error


def _compile(source: str) -> tuple[Template, nodes.Template]:
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationBlock]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    try:
        # A tree of its own: compiling takes constants together.
        return environment.from_string(source), environment.parse(source)
    except TemplateSyntaxError as error:
        raise SourceError(f"`chat_template`, line {error.lineno}: {error.message}") from error
    except RecursionError as error:
        raise SourceError("`chat_template` is nested too deeply") from error


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox bounds `range`; this one also bounds `*` and `**`, which could take all memory or time."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        is_too_much = _is_huge(left, right) if operator == "**" else _is_long(left, right) or _is_long(right, left)
        if is_too_much:
            raise SecurityError(f"the result of {operator} would be too large")
        return super().call_binop(context, operator, left, right)


def _is_huge(base: object, exponent: object) -> bool:
    return isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * exponent > MAX_POWER_BITS


def _is_long(repeated: object, times: object) -> bool:
    return (
        isinstance(repeated, str | list | tuple)
        and isinstance(times, int)
        and len(repeated) * times > MAX_REPEATED_ITEMS
    )


class _GenerationBlock(Extension):
    """`{% generation %}` marks assistant text for training; when prompting it is its content."""

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
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)
