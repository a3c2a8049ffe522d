"""A Jinja environment for programs that came with a model and may mean harm: bounded in time, steps and size.

Knows Jinja, and which of its ways to compute can take all time or memory. Knows nothing of chats. Jinja's own sandbox
keeps a template from the interpreter; this one also counts each turn of a loop, each call and each character that is
put together, weighs each list and mapping that is made, and refuses what would grow beyond measure before it grows.
What is refused raises SecurityError.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from types import BuiltinMethodType
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from pointsman.template_weights import Weights

MAX_SECONDS = 2.0
MAX_STEPS = 2**18
MAX_CHARS = 2**27
MAX_ITEMS = 2**20
MAX_WEIGHT = 2**18
MAX_NUMBER_BITS = 2**10
MAX_ARGUMENT = 2**16

_WIDE = re.compile(r"\d{5,}|\*")
# They take time that cannot be told before, and no chat needs them.
_NO_FILTERS = ("pprint", "striptags", "urlize", "wordwrap", "xmlattr")
_PADDING = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs"})


class Budget:
    """What one rendering may still spend."""

    __slots__ = ("_chars_left", "_ends_s", "_steps_left", "weights")

    def __init__(self) -> None:
        self._ends_s = time.monotonic() + MAX_SECONDS
        self._steps_left = MAX_STEPS
        self._chars_left = MAX_CHARS
        self.weights = Weights()

    def spend(self, num_steps: int = 1) -> None:
        self._steps_left -= num_steps
        if self._steps_left < 0 or time.monotonic() > self._ends_s:
            raise SecurityError("the template computes for too long")

    def spend_chars(self, num_chars: int) -> None:
        self._chars_left -= num_chars
        if self._chars_left < 0:
            raise SecurityError("the template writes too much")

    def __repr__(self) -> str:
        return f"<Budget {self._steps_left} steps {self._chars_left} characters left>"


# Constants are computed when a template is compiled, within no budget: each filter bounds itself all the same.
_budget: ContextVar[Budget | None] = ContextVar("budget", default=None)


@contextmanager
def budget() -> Iterator[None]:
    """What is rendered inside has a budget of its own."""
    token = _budget.set(Budget())
    try:
        yield
    finally:
        _budget.reset(token)


def measured(value: object) -> object:
    """The value, if it is small enough to be written out: lists can hold one another many times over."""
    if isinstance(value, list | tuple | dict):
        _spend(len(value))
        for item in value.items() if isinstance(value, dict) else value:
            measured(item)
    elif isinstance(value, str):
        _spend_chars(len(value))
    return value


class TemplateSandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, finalize=_finalized)
        del self.globals["lipsum"]
        self.filters = {
            name: _bounded(name, function) for name, function in self.filters.items() if name not in _NO_FILTERS
        }
        self.filters |= {"_turns": _turns, "_weighed": _weighed}
        self.globals["namespace"] = _Names

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """In place of Jinja's `concat`, with which it puts together whatever a template writes."""
        pieces = list(pieces)
        _spend_chars(sum(map(len, pieces)))
        return "".join(pieces)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _Counted().visit(tree)
        return tree

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        if _is_too_large(operator, left, right):
            raise SecurityError(f"the result of {operator} would be too large")
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: object, *args: object, **kwargs: object) -> object:
        # The odd names are Jinja's: a template may pass arguments named `self` or `context`.
        _spend()
        if isinstance(__obj, BuiltinMethodType) and isinstance(__obj.__self__, str | bytes):
            _check_method(__obj.__name__, __obj.__self__, args)
        if isinstance(__obj, LoopContext) and args and isinstance(args[0], Iterable):
            args = (_turns(args[0]), *args[1:])
        if isinstance(__obj, Macro):
            _weighed((args, kwargs))
        return _weighed(super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: object) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        _check_format(str(getattr(value, "__self__", "")))

        def bounded(*args: object, **kwargs: object) -> str:
            measured([args, kwargs])
            return wrapped(*args, **kwargs)

        return bounded


class _Counted(NodeTransformer):
    """Makes loops count their turns, `~` a sum, which is bounded, and lists be weighed as they are made."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "_turns")
        return node

    def visit_List(self, node: nodes.List) -> nodes.Expr:
        return self._weighed(node, node.items)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:
        return self._weighed(node, node.items if node.ctx == "load" else ())

    def visit_Dict(self, node: nodes.Dict) -> nodes.Expr:
        return self._weighed(node, [pair.value for pair in node.items])

    def _weighed(self, node: nodes.Expr, items: Iterable[nodes.Node]) -> nodes.Expr:
        is_constant = all(isinstance(item, nodes.Const) for item in items)
        self.generic_visit(node)
        return node if is_constant else _filtered(node, "_weighed")

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:
        self.generic_visit(node)
        first, *rest = (_filtered(each, "string") for each in node.nodes)
        joined: nodes.Expr = first
        for each in rest:
            joined = nodes.Add(joined, each, lineno=node.lineno, environment=node.environment)
        return joined


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno, environment=node.environment)


def _finalized(value: object) -> object:
    return measured(value) if isinstance(value, list | tuple | dict) else value


class _Names(Namespace):
    """Written out by its name alone: it holds what was never weighed together."""

    def __repr__(self) -> str:
        return "<Namespace>"


def _weight(value: object) -> int:
    current = _budget.get()
    return 1 if current is None else current.weights.of(value)


def _weighed(value: Any) -> Any:
    """The value, if it is light enough for whatever a template does with it."""
    if isinstance(value, list | tuple | dict) and _weight(value) > MAX_WEIGHT:
        raise SecurityError("a list or a mapping is too large")
    return value


def _turns(items: Iterable[Any]) -> Iterable[Any]:
    """The items, each paid for when it is taken; or all at once where loops may ask for their number."""
    if not isinstance(items, Sized):
        return _paid(items)
    _spend(len(items))
    return items


def _paid(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        _spend()
        yield item


def _spend(num_steps: int = 1) -> None:
    current = _budget.get()
    if current is not None:
        current.spend(num_steps)


def _spend_chars(num_chars: int) -> None:
    current = _budget.get()
    if current is not None:
        current.spend_chars(num_chars)
    elif num_chars > MAX_CHARS:
        raise SecurityError("the template writes too much")


def _is_too_large(operator: str, left: object, right: object) -> bool:
    if isinstance(left, int) and isinstance(right, int):
        return _num_bits(operator, left, right) > MAX_NUMBER_BITS
    if operator == "*":
        return _is_long(left, right) or _is_long(right, left)
    if operator == "+" and isinstance(left, str):
        _spend_chars(len(left) + _length(right))
    elif operator == "+":
        return _weight(left) + _weight(right) > MAX_WEIGHT
    elif operator == "%" and isinstance(left, str):
        _check_format(left)
        measured([left, right])
    return False


def _num_bits(operator: str, left: int, right: int) -> int:
    if operator == "**":
        return left.bit_length() * max(right, 1)
    return left.bit_length() + right.bit_length() if operator == "*" else 0


def _is_long(repeated: object, times: object) -> bool:
    if not isinstance(times, int):
        return False
    if isinstance(repeated, list | tuple):
        return _weight(repeated) * times > MAX_WEIGHT
    return _length(repeated) * times > MAX_ITEMS


def _length(value: object) -> int:
    return len(value) if isinstance(value, str | bytes) else 0


def _check_method(name: str, text: str | bytes, args: tuple[Any, ...]) -> None:
    """Of a string: those that can make it grow."""
    if name == "translate":
        raise SecurityError("translate() is not for templates")
    if name in _PADDING:
        _check_arguments(args)
    elif name == "replace" and len(args) >= 2:
        _spend_chars(len(text) + text.count(args[0]) * _length(args[1]))
    elif name == "join" and args and isinstance(args[0], list | tuple):
        _spend_chars(sum(len(text) + _length(item) for item in args[0]))
    elif name == "join" and args and not isinstance(args[0], str):
        raise SecurityError("join() takes a list")


def _check_arguments(args: Iterable[object]) -> None:
    if any(isinstance(arg, int) and abs(arg) > MAX_ARGUMENT for arg in args):
        raise SecurityError("a width or a count is too large")


def _check_format(text: str) -> None:
    if _WIDE.search(text):
        raise SecurityError("a format is too wide")


def _bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that pays for a step, and for what it may make of its value."""
    num_passed = 1 if hasattr(function, "jinja_pass_arg") else 0
    check = _CHECKS.get(name)

    @wraps(function)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        _spend()
        value, *given = args[num_passed:] or (None,)
        _check_arguments([*given, *kwargs.values()])
        if check is not None:
            value = check(value, *given)
        return _weighed(function(*args[:num_passed], value, *given, **kwargs))

    return bounded


def _check_replace(text: Any, old: Any = "", new: Any = "", *_: object) -> Any:
    _spend_chars(len(str(text)) + str(text).count(str(old)) * len(str(new)))
    return text


def _check_join(items: Any, separator: Any = "", *_: object) -> Any:
    items = list(items)
    measured(items)
    _spend_chars(len(items) * len(str(separator)))
    return items


def _check_indent(text: Any, width: Any = 4, *_: object) -> Any:
    _spend_chars((str(text).count("\n") + 1) * (width if isinstance(width, int) else len(str(width))))
    return text


def _check_sum(items: Any, *_: object) -> Any:
    """Sums of lists are lists of any length."""
    items = list(items)
    if any(isinstance(item, list | tuple | str) for item in items):
        raise SecurityError("sum is for numbers")
    return items


def _check_formatting(text: Any, *args: object) -> Any:
    _check_format(str(text))
    measured(args)
    return text


_CHECKS: dict[str, Callable[..., Any]] = {
    "replace": _check_replace,
    "join": _check_join,
    "indent": _check_indent,
    "sum": _check_sum,
    "format": _check_formatting,
    "string": measured,
}
