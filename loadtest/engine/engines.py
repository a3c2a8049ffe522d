"""Starts each engine in a process of its own, one after the other, and reads its figures.

Knows commands, interpreters and their environment. Must not know what the figures mean.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec

from loadtest.engine.job import Figures, Job
from loadtest.errors import LoadError

_HERE = Path(__file__).parent
_MOST_S = 1800
DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True, slots=True)
class Contender:
    """One engine in one number format. `quantized` is our own setting of that name. `model` None is the job's own
    folder."""

    name: str
    dtype: str
    command: tuple[str, ...]
    quantized: str = "auto"
    model: str | None = None

    @property
    def label(self) -> str:
        return f"{self.name} {self.dtype}" + (f", {self.quantized}" if self.quantized != "auto" else "")


def contenders(model: str, vllm: Path | None) -> list[Contender]:
    """`model` is what our engine loads; `vllm` an interpreter that has vLLM. Transformers in float32 comes first: its
    answers are the measure."""
    ours = (sys.executable, "-m", "engine.measure")
    found = [Contender("transformers", dtype, (sys.executable, str(_HERE / "ask_transformers.py"))) for dtype in DTYPES]
    if vllm is not None:
        found += [Contender("vllm", dtype, (str(vllm), str(_HERE / "ask_vllm.py"))) for dtype in DTYPES]
    found += [Contender("pointsman", dtype, ours, model=model) for dtype in DTYPES]
    if model.endswith(".gguf"):
        found.append(Contender("pointsman", "bfloat16", ours, quantized="small", model=model))
    return found


def run(contender: Contender, job: Job) -> Figures:
    """Raises LoadError with the last line that it said."""
    asked = msgspec.structs.replace(
        job, dtype=contender.dtype, quantized=contender.quantized, model=contender.model or job.model
    )
    environment = os.environ | {"OMP_NUM_THREADS": str(job.threads), "HF_HUB_OFFLINE": "1"}
    try:
        done = subprocess.run(
            contender.command,
            input=msgspec.json.encode(asked),
            capture_output=True,
            timeout=_MOST_S,
            check=False,
            env=environment,
        )
        if done.returncode == 0:
            return msgspec.json.decode(done.stdout, type=Figures)
    except subprocess.TimeoutExpired:
        raise LoadError(f"{contender.label}: not done after {_MOST_S} s") from None
    except (OSError, msgspec.DecodeError) as error:
        raise LoadError(f"{contender.label}: {error}") from None
    said = done.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"]
    raise LoadError(f"{contender.label}: exit status {done.returncode}: {said[-1][:300]}")


def export(model: Path, folder: Path) -> None:
    """Writes a GGUF as the Hugging Face folder that the others read. Raises LoadError."""
    command = (sys.executable, "-m", "engine.model.export", str(model), str(folder))
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise LoadError(done.stderr.decode(errors="replace").strip() or f"{model} cannot be written as a folder")
