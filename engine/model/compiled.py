"""Our one function in C, compiled where it is to run.

Knows compilers, processors' features and a cache folder. Must not know matrices. Where there is no compiler, or the
processor lacks what the function needs, there is no function: whoever wants it has another way.
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

import torch

log = logging.getLogger(__name__)

_SOURCE = Path(__file__).with_name("coded.c")
_FLAGS = ("-O3", "-march=native", "-std=gnu11", "-fopenmp", "-shared", "-fPIC")
_COMPILE_WITHIN_S = 60.0

Multiply = Callable[[int, int, int, int, int, int, int, int], int]
"""(matrix, bits, inputs, outputs, rows, groups, outputs a row, threads) -> 0, or 1 where memory is short; see coded.c.
The first of them are addresses. Releases the interpreter's lock."""


@cache
def multiply_coded() -> Multiply | None:
    """Compiles on the first call on this machine, a second or two; later ones find the library in the cache folder."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        log.info("there is no C compiler: weights that are stored in 4 or 8 bits are widened")
        return None
    try:
        function = ctypes.CDLL(str(_library(compiler))).multiply_coded
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        log.info("coded.c cannot be compiled or loaded here, weights are widened: %s", said.strip().splitlines()[0])
        return None
    address, size, number = ctypes.c_void_p, ctypes.c_long, ctypes.c_int
    function.argtypes = [address, number, address, address, size, size, size, number]
    function.restype = number
    found: Multiply = function
    return found


def _library(compiler: str) -> Path:
    """Its name tells all that it depends on, so that a folder may be shared between machines."""
    command = [compiler, *_FLAGS, str(_SOURCE)]
    parts = (_SOURCE.read_text(), *command, *_openmp(), _processor())
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pointsman" / "compiled"
    library = folder / f"coded-{sha256(chr(0).join(parts).encode()).hexdigest()[:24]}.so"
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
