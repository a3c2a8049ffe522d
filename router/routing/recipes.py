"""Recipes: what a policy is made of, and how a file says it. Knows TOML and names of parts; makes no part and decides
nothing.

    name = "ours"                          # in reasons and logs; the file's name, where it says none
    [picker]
    type = "lowest-random-ties"            # of equal costs any
    [[filters]]                            # in this order, after those that every policy has
    type = "sticky-until-saturated"
    parameters = { peak_tokens_per_s = 15000 }
    [[scorers]]
    type = "matched-share"
    weight = 2.0                           # in a blend of shares only: costs are added up
    [[scorers]]
    type = "mine.py:Affinity"              # a class in a file beside this one

or, instead of parts, our own policy with other weights (`cost.Weights`) and bounds (`pointsman.Pointsman`):

    [pointsman]
    useful_depth_s = 4.0
    weights = { copy = 4.0 }
"""

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from router.plugins import PluginError, unknown_name

SUFFIX = ".toml"
_NO_OPTIONS: Mapping[str, object] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a policy: its name and options. `weight` is for scorers of a blend."""

    name: str
    options: Mapping[str, object] = field(default_factory=lambda: _NO_OPTIONS)
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a policy is made of. `filters` come after those that every policy has: not tried, has room, has adapter.
    `name` is for reasons; that of a preset is its key."""

    picker: Part
    scorers: tuple[Part, ...] = ()
    filters: tuple[Part, ...] = ()
    name: str = ""


@dataclass(frozen=True, slots=True)
class Tuned:
    """Our own policy under a name of its own, with options that are not as usual."""

    name: str
    options: Mapping[str, object]


class _Part(msgspec.Struct, frozen=True):
    type: str
    parameters: dict[str, Any] = {}


class _Scorer(_Part, frozen=True):
    weight: float = 1.0


class _File(msgspec.Struct, frozen=True):
    picker: _Part | None = None
    scorers: list[_Scorer] = []
    filters: list[_Part] = []
    pointsman: dict[str, Any] | None = None
    name: str = ""


def is_recipe(policy: str) -> bool:
    """Does the setting name a file? No policy's name ends as one does."""
    return policy.endswith(SUFFIX)


def read_recipe(path: Path) -> Recipe | Tuned:
    """Raises PluginError that names the file, and the field that is wrong."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        _check_names(content)
        found = msgspec.convert(content, _File)
        name = found.name or path.stem
        if not name.isprintable() or not name.isascii() or ";" in name:  # it goes into a header
            raise PluginError("`name` must be of printable ASCII without a semicolon")
        if (found.picker is None) is (found.pointsman is None):
            raise PluginError("give `picker`, with or without filters and scorers, or `pointsman` by itself")
    except OSError as error:
        raise PluginError(f"cannot read the recipe {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError, PluginError) as error:
        raise PluginError(f"the recipe {path}: {error}") from None
    if found.picker is None:
        return _tuned(path, name, found)
    scorers = tuple(_part(path.parent, each, each.weight) for each in found.scorers)
    return Recipe(_part(path.parent, found.picker), scorers, tuple(_part(path.parent, e) for e in found.filters), name)


def written(recipe: Recipe | Tuned) -> str:
    """As `read_recipe` reads it."""
    if isinstance(recipe, Tuned):
        lines = [f"{key} = {_value(value)}" for key, value in recipe.options.items()]
        return "\n".join([f"name = {json.dumps(recipe.name)}", "[pointsman]", *lines]) + "\n"
    lines = [f"name = {json.dumps(recipe.name)}", "[picker]", *_lines(recipe.picker)]
    for part in recipe.filters:
        lines += ["[[filters]]", *_lines(part)]
    for part in recipe.scorers:
        lines += ["[[scorers]]", *_lines(part)]
    return "\n".join(lines) + "\n"


def files_of(path: Path) -> list[Path]:
    """The recipe's file, and those that its parts are in. Raises PluginError as `read_recipe` does."""
    recipe = read_recipe(path)
    if isinstance(recipe, Tuned):
        return [path]
    named = [part.name for part in (recipe.picker, *recipe.scorers, *recipe.filters)]
    return [path, *sorted({Path(name.rpartition(":")[0]) for name in named if _is_file(name)})]


def _tuned(path: Path, name: str, found: _File) -> Tuned:
    if found.scorers or found.filters:
        raise PluginError(f"the recipe {path}: `pointsman` stands by itself, without filters and scorers")
    return Tuned(name, found.pointsman or {})


def _part(folder: Path, given: _Part, weight: float = 1.0) -> Part:
    name = str(folder / given.type) if _is_file(given.type) else given.type
    return Part(name, given.parameters, weight)


def _is_file(name: str) -> bool:
    return ".py:" in name


def _check_names(content: Mapping[str, Any]) -> None:
    """An unknown field is told with the nearest that there is; what has the wrong shape is found later."""
    _check_fields("", content, _File)
    for field_name, shape in (("picker", _Part), ("filters", _Part), ("scorers", _Scorer)):
        given = content.get(field_name)
        for each in given if isinstance(given, list) else [given]:
            if isinstance(each, dict):
                _check_fields(f" of `{field_name}`", each, shape)


def _check_fields(where: str, given: Mapping[str, Any], shape: type[msgspec.Struct]) -> None:
    for key in given:
        if key not in shape.__struct_fields__:
            raise unknown_name(f"field{where}", key, shape.__struct_fields__)


def _lines(part: Part) -> Iterator[str]:
    yield f"type = {json.dumps(part.name)}"
    if part.weight != 1.0:
        yield f"weight = {part.weight}"
    if part.options:
        yield f"parameters = {_value(part.options)}"


def _value(value: object) -> str:
    """JSON's but for tables and numbers without an end, as TOML has it."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{key} = {_value(each)}' for key, each in value.items())} }}"
    return json.dumps(value)
