"""Results kept on disk, by what they depend on: the code that simulates, and every parameter. Knows files and hashes;
knows nothing of what a result means."""

import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

import msgspec

_ROOT = Path(__file__).parent.parent.parent
# What a simulated second depends on. A file that only shows results is left out.
_CODE = (
    "engine/*.py",
    "proto/pointsman/*.py",
    "router/*.py",
    "router/admission/*.py",
    "router/prefix/*.py",
    "router/replicas/*.py",
    "router/routing/**/*.py",
    "loadtest/trace.py",
    "loadtest/simulator/*.py",
    "loadtest/traces/engine_profiles.json",
    "loadtest/traces/workload_catalog.json",
)
_SHOWS_ONLY = frozenset({"report.py", "picture.py", "cache.py", "settings.py", "study.py", "command.py"})

_Value = TypeVar("_Value", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class ResultCache:
    """In `folder`; None keeps nothing."""

    folder: Path | None

    def get(self, kind: type[_Value], parameters: object, compute: Callable[[], _Value]) -> _Value:
        """The result for these parameters, computed where it is not there. A file that cannot be read is as none."""
        path = self._path(kind.__name__, parameters)
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

    def _path(self, kind: str, parameters: object) -> Path | None:
        if self.folder is None:
            return None
        key = hashlib.sha256(f"{code_key()} {kind} ".encode() + msgspec.json.encode(parameters, order="deterministic"))
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
def code_key() -> str:
    """A digest of all code that a result depends on."""
    found = {path for pattern in _CODE for path in _ROOT.glob(pattern)}
    return file_key(sorted(path for path in found if path.name not in _SHOWS_ONLY))
