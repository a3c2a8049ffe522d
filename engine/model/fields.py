"""Typed access to the fields of a config of unknown origin.

Knows kinds of values. Must not know models. Every error names the source and the field.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class ModelError(ValueError):
    """A model's files cannot be used; the message names the file and the field or tensor."""


@dataclass(frozen=True, slots=True)
class Fields:
    """`source` names where the values came from. Each reader raises ModelError for a value of another kind."""

    values: Mapping[str, object]
    source: str

    def text(self, field: str) -> str:
        value = self._present(field, None)
        if not isinstance(value, str):
            raise self.wrong(field, "a string")
        return value

    def count(self, field: str, default: int | None = None, *, most: int | None = None) -> int:
        value = self._present(field, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.wrong(field, "a positive whole number")
        if most is not None and value > most:
            raise self.wrong(field, f"{most} at most")
        return value

    def positive(self, field: str, default: float | None = None) -> float:
        value = self._present(field, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise self.wrong(field, "a positive number")
        return float(value)

    def flag(self, field: str, default: bool) -> bool:
        value = self._present(field, default)
        if not isinstance(value, bool):
            raise self.wrong(field, "true or false")
        return value

    def token_ids(self, field: str) -> tuple[int, ...]:
        """One id, a list of them, or nothing."""
        value = self.values.get(field)
        ids = value if isinstance(value, list | tuple) else () if value is None else (value,)
        if not all(isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in ids):
            raise self.wrong(field, "a token id or a list of them")
        return tuple(ids)

    def nested(self, field: str) -> "Fields | None":
        value = self.values.get(field)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise ModelError(f"{self.source}: {field} is not an object")
        return Fields(value, f"{self.source}: {field}")

    def refuse_unless(self, field: str, honoured: tuple[object, ...]) -> None:
        value = self.values.get(field)
        if field in self.values and value not in honoured:
            raise ModelError(f"{self.source}: {field} = {value!r} is not supported (only {honoured[0]!r} is)")

    def wrong(self, field: str, wanted: str) -> ModelError:
        return ModelError(f"{self.source}: {field} must be {wanted}, not {str(self.values.get(field))[:80]!r}")

    def _present(self, field: str, default: object) -> object:
        value = self.values.get(field)
        if value is None:
            value = default
        if value is None:
            raise ModelError(f"{self.source}: {field} is missing")
        return value


def read_json_object(path: Path) -> dict[str, Any]:
    """Raises ModelError unless the file is there and holds a JSON object."""
    try:
        parsed = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path}: cannot be read as JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise ModelError(f"{path}: not a JSON object")
    return parsed
