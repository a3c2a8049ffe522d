"""Gets routers and the C programs ready to run. Knows pip, venvs and the C compiler; knows no router by name."""

import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from shutil import rmtree, which

from loadtest.errors import LoadError
from loadtest.peers.launch import Peer
from loadtest.peers.process import Unavailable, last_line, run

_PIP_S, _COMPILE_S = 900.0, 60.0
_SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")
_SOURCES = Path(__file__).parent


def program_of(peer: Peer, scratch: Path) -> str:
    """Path of the router's program, installed first where pip can. Raises Unavailable with what the installer said."""
    if peer.packages:
        return str(_environment(peer.packages, scratch) / "bin" / peer.program)
    path = os.pathsep.join((os.environ.get("PATH", ""), *_SYSTEM_FOLDERS))
    found = which(peer.program, path=path)
    if found is None:
        raise Unavailable(f"{peer.program} is not installed ({peer.hint})")
    return found


def compile_c(name: str, scratch: Path) -> Path:
    """The program `name`, compiled from `name`.c unless that was done before. Raises LoadError."""
    source = _SOURCES / f"{name}.c"
    text = b"".join(file.read_bytes() for file in (source, *sorted(_SOURCES.glob("*.h"))))
    program = scratch / f"{name}-{hashlib.sha256(text).hexdigest()[:12]}"
    if program.exists():
        return program
    scratch.mkdir(parents=True, exist_ok=True)
    partial = program.with_suffix(f".{os.getpid()}")
    compiler = next(filter(None, map(which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        raise LoadError("needs a C compiler (cc), to build the replicas and the load generator")
    try:
        code, printed = run([compiler, "-O2", "-o", str(partial), str(source)], _COMPILE_S)
    except Unavailable as error:
        raise LoadError(f"{source.name}: {error}") from None
    if code != 0:
        raise LoadError(f"{source.name} does not compile: {last_line(printed)}")
    partial.rename(program)  # in one step: another run may want it meanwhile
    return program


def _environment(packages: Sequence[str], scratch: Path) -> Path:
    """A venv with these packages alone: routers of one family overwrite each other's modules."""
    wanted = "\n".join((sys.version, *packages))
    folder = scratch / "venvs" / hashlib.sha256(wanted.encode()).hexdigest()[:12]
    done = folder / "installed"
    if done.exists():
        return folder
    rmtree(folder, ignore_errors=True)  # half an installation is none
    folder.parent.mkdir(parents=True, exist_ok=True)
    _check(run([sys.executable, "-m", "venv", str(folder)], _PIP_S))
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    _check(run([*pip, *packages], _PIP_S))
    done.write_text(wanted)
    return folder


def _check(ended: tuple[int, str]) -> None:
    code, printed = ended
    if code != 0:
        raise Unavailable(f"cannot be installed: {reason_in(printed)}")


def reason_in(printed: str) -> str:
    """Of what pip said, the line that tells why: it is seldom the last."""
    lines = [line.strip() for line in printed.splitlines()]
    for mark in ("fatal:", "ERROR:", "error:"):
        telling = next((line for line in lines if line.startswith(mark)), None)
        if telling is not None:
            return last_line(telling)
    return last_line(printed) or "pip printed nothing"
