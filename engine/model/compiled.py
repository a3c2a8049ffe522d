"""Functions in C, compiled where they are to run.

Knows compilers, processors' features and a cache folder. Must not know what the functions do. Where there is no
compiler, or the processor lacks what a function needs, there is no function: whoever wants it has another way.
"""

import ctypes
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

log = logging.getLogger(__name__)

_FLAGS = ("-O3", "-march=native", "-std=gnu11", "-fopenmp", "-shared", "-fPIC")
_COMPILE_WITHIN_S = 60.0

Function = Callable[..., int]


@cache
def compiled(source: str, name: str, argtypes: tuple[Any, ...]) -> Function | None:
    """The function `name` of a file in this folder; it gives an int and releases the interpreter's lock.

    Compiles on the first call on this machine, a second or two; later ones find the library in the cache folder.
    """
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        log.info("there is no C compiler for %s: PyTorch does its work, slower", source)
        return None
    try:
        function = getattr(ctypes.CDLL(str(_library(compiler, Path(__file__).with_name(source)))), name)
    except (OSError, RuntimeError, AttributeError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip()
        log.info("%s cannot be compiled here, PyTorch does its work: %s", source, said.partition("\n")[0])
        return None
    function.argtypes = argtypes
    function.restype = ctypes.c_int
    found: Function = function
    return found


def _library(compiler: str, source: Path) -> Path:
    """Its name tells all that it depends on, so that a folder may be shared between machines."""
    command = [compiler, *_FLAGS, str(source)]
    texts = (path.read_text() for path in (source, *sorted(source.parent.glob("*.h"))))
    parts = (*texts, *command, *_openmp(), _processor())
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pointsman" / "compiled"
    library = folder / f"{source.stem}-{sha256(chr(0).join(parts).encode()).hexdigest()[:24]}.so"
    if not library.exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Others may compile the same: each under a name of its own, and the last one stays.
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / library.name
            subprocess.run(
                [*command, *_openmp(), "-o", str(made)],
                check=True,
                capture_output=True,
                text=True,
                timeout=_COMPILE_WITHIN_S,
            )
            made.replace(library)
    return library


def _openmp() -> list[str]:
    """PyTorch's own: two pools of threads would wait for each other's processors."""
    return [str(path) for path in sorted((Path(torch.__file__).parent / "lib").glob("libgomp*"))[:1]]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith("flags")), platform.processor())
