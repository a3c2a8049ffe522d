"""Plug-ins: a name becomes an object. Knows classes, their fields and where outsiders register; no room and no I/O
but the import of a plug-in's own code, at start.

A plug-in is one class, a dataclass: its fields are its options. It is found by a built-in name, by an entry point of
an installed package (group `pointsman.filters`, `pointsman.scorers` or `pointsman.pickers`), or by file:
`path/to/file.py:ClassName`.
"""

import difflib
import importlib.util
import sys
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar, cast, get_type_hints

import msgspec

T = TypeVar("T")

_NOTHING: Mapping[str, object] = {}


class PluginError(ValueError):
    """A name, an option or a plug-in's code is wrong; the message names it and says what would be right."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> PluginError:
    """The error for a name that is not among `known`: it suggests the nearest, else lists them all."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f'did you mean "{near[0]}"?' if near else f"known: {', '.join(names) or 'none'}"
    return PluginError(f'unknown {kind} "{name}"; {hint}')


@dataclass(frozen=True, slots=True)
class Registry(Generic[T]):
    """Classes of one kind by name. `method` is the one that makes a class a plug-in of this kind."""

    kind: str
    method: str
    builtin: Mapping[str, type[T]]
    outside: Mapping[str, EntryPoint]

    @property
    def names(self) -> list[str]:
        return sorted({*self.builtin, *self.outside})

    def create(self, name: str, options: Mapping[str, object] = _NOTHING, given: Mapping[str, object] = _NOTHING) -> T:
        """Build a plug-in from its options; `given` fills the fields that are ours to fill, where the class has them.

        Raises PluginError for an unknown name, an unknown, missing or wrong option, and code that does not load.
        """
        found = self.find(name)
        label = f'{self.kind} "{name}"'
        own = {field.name: field for field in fields(cast(Any, found)) if field.init}
        asked = {key: own[key] for key in own if key not in given}
        _check_names(label, options, asked)
        values = {key: _converted(label, found, key, value) for key, value in options.items()}
        try:
            return found(**values, **{key: value for key, value in given.items() if key in own})
        except (TypeError, ValueError) as error:
            raise PluginError(f"{label}: {error}") from error

    def find(self, name: str) -> type[T]:
        """The class of that name. Raises PluginError where there is none, or where it is not a plug-in of this kind."""
        if name in self.builtin:
            return self.builtin[name]
        if name in self.outside:
            return self._checked(name, _load_entry_point(self.outside[name]))
        if ".py:" in name:
            return self._checked(name, _load_file(name))
        raise unknown_name(self.kind, name, self.names)

    def _checked(self, name: str, found: object) -> type[T]:
        if not isinstance(found, type) or not is_dataclass(found):
            raise PluginError(f'{self.kind} "{name}" is not a dataclass')
        if not callable(getattr(found, self.method, None)):
            raise PluginError(f'{self.kind} "{name}" has no method `{self.method}`')
        return cast(type[T], found)


def open_registry(kind: str, method: str, builtin: Mapping[str, type[T]]) -> Registry[T]:
    """A registry of the built-in classes and those that installed packages offer in the group `pointsman.{kind}s`.

    Nothing of an outsider is imported before its name is asked for. Raises PluginError where a name is taken twice.
    """
    outside: dict[str, EntryPoint] = {}
    for entry in entry_points(group=f"pointsman.{kind}s"):
        if entry.name in builtin or entry.name in outside:
            raise PluginError(f'{kind} "{entry.name}" of {entry.value} has a name that is taken')
        outside[entry.name] = entry
    return Registry(kind, method, builtin, outside)


def _check_names(label: str, options: Mapping[str, object], asked: Mapping[str, "Field[Any]"]) -> None:
    for option in options:
        if option not in asked:
            raise unknown_name(f"option of {label}", option, asked)
    for option, field in asked.items():
        if option not in options and field.default is MISSING and field.default_factory is MISSING:
            raise PluginError(f'{label} needs the option "{option}"')


def _converted(label: str, found: type[object], option: str, value: object) -> object:
    try:
        return msgspec.convert(value, get_type_hints(found)[option])
    except msgspec.ValidationError as error:
        raise PluginError(f'option "{option}" of {label}: {error}') from error


def _load_entry_point(entry: EntryPoint) -> object:
    try:
        return entry.load()
    except Exception as error:
        raise PluginError(f'"{entry.name}" ({entry.value}) does not load: {error!r}') from error


def _load_file(name: str) -> object:
    place, _, class_name = name.rpartition(":")
    path = Path(place).resolve()
    spec = importlib.util.spec_from_file_location(f"pointsman_plugin:{path}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise PluginError(f'no file "{place}" for the plug-in "{name}"')
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look up their own module by name while they are made.
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[spec.name]
        raise PluginError(f'"{place}" does not load: {error!r}') from error
    if not hasattr(module, class_name):
        raise unknown_name(f"class in {place}", class_name, (key for key in vars(module) if not key.startswith("_")))
    return getattr(module, class_name)
