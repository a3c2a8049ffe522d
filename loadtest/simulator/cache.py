"""Results kept on disk, by what they depend on: the code that simulates, and every parameter. Knows files and hashes;
knows nothing of what a result means."""

import ast
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

import msgspec

from router.routing.presets import DEFAULT

_ROOT = Path(__file__).parent.parent.parent
# Results depend on what these import, directly or not, and on the tables.
_ENTRIES = tuple(f"loadtest/simulator/{name}.py" for name in ("simulate", "scenario", "summary", "bounds"))
_TABLES = ("loadtest/traces/engine_profiles.json", "loadtest/traces/workload_catalog.json")
# This file imports all policies, but one is simulated: others' results do not hang on ours, nor ours on theirs.
_PRESETS, _OURS, _PUBLISHED = "router/routing/presets.py", "router/routing/pointsman.py", "router/routing/published/"
# Those that only fleets with roles need.
_PAIRED = frozenset({"router/handover.py", "router/routing/splitting.py"})

_Value = TypeVar("_Value", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class ResultCache:
    """In `folder`; None keeps nothing."""

    folder: Path | None

    def get(
        self,
        kind: type[_Value],
        parameters: object,
        compute: Callable[[], _Value],
        policy: str | None = None,
        *,
        is_paired: bool = False,
    ) -> _Value:
        """The result for these parameters, computed where it is not there. A file that cannot be read is as none."""
        path = self._path(kind.__name__, [policy, parameters], policy, is_paired)
        if path is None:
            return compute()
        try:
            return msgspec.json.decode(path.read_bytes(), type=kind)
        except (OSError, msgspec.DecodeError):
            value = compute()
        path.parent.mkdir(parents=True, exist_ok=True)
        # Whole or not at all: another process may look for it.
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_bytes(msgspec.json.encode(value))
        unfinished.replace(path)
        return value

    def _path(self, kind: str, parameters: object, policy: str | None, is_paired: bool) -> Path | None:
        if self.folder is None:
            return None
        code = f"{code_key(policy, is_paired)} {kind} ".encode()
        key = hashlib.sha256(code + msgspec.json.encode(parameters, order="deterministic"))
        return self.folder / f"{key.hexdigest()[:32]}.json"


def default_folder() -> Path:
    """Where results are kept unless said otherwise."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pointsman" / "simulator"


def file_key(paths: Iterable[Path]) -> str:
    """A digest of what these files hold."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


@cache
def code_key(policy: str | None, is_paired: bool = False) -> str:
    """A digest of all code that this policy's results depend on; of all policies' without one."""
    return file_key(_ROOT / path for path in sorted(code_of(policy, is_paired)))


@cache
def code_of(policy: str | None, is_paired: bool = False) -> frozenset[str]:
    """The files behind `code_key`, from the project's root; `is_paired`: of fleets with roles."""
    found, ahead = set[str](), list(_ENTRIES)
    while ahead:
        path = ahead.pop()
        if path not in found:
            found.add(path)
            needed = [each for each in _imports(_ROOT / path) if path != _PRESETS or _is_of(policy, each)]
            ahead += [each for each in needed if is_paired or each not in _PAIRED]
    return frozenset(found).union(_TABLES)


def _is_of(policy: str | None, path: str) -> bool:
    if policy is None:
        return True
    return not path.startswith(_PUBLISHED) if policy == DEFAULT else path != _OURS


def _imports(path: Path) -> Iterator[str]:
    """The project's own files that this one imports."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        match node:
            case ast.Import(names=names):
                modules = [name.name for name in names]
            case ast.ImportFrom(module=str(module), names=names):
                modules = [module, *(f"{module}.{name.name}" for name in names)]
            case _:
                continue
        for module in modules:
            file = f"{module.replace('.', '/')}.py"
            for place in (file, f"proto/{file}"):
                if (_ROOT / place).is_file():
                    yield place
