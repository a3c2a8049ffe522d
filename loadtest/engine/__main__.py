"""`python -m loadtest.engine`: the bundled engine beside transformers and vLLM, on the same weights and tokens.

Each engine runs alone, in a process of its own. Exit code 1 if one fails, or if our answers in float32 are wrong.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from loadtest.engine.comparison import OURS, rows_of
from loadtest.engine.engines import DTYPES, Contender, contenders, export, run
from loadtest.engine.job import QUICK, Figures, Lengths, job_for
from loadtest.engine.report import print_json, print_table
from loadtest.errors import LoadError


def main() -> int:
    options = _parser().parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="pointsman-engines-") as scratch:
            return _measure(options, Path(scratch))
    except LoadError as error:
        print(f"loadtest.engine: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def _measure(options: argparse.Namespace, scratch: Path) -> int:
    folder = options.model
    if folder.suffix == ".gguf":
        folder = scratch / "model"
        export(options.model, folder)
    lengths = QUICK if options.quick else Lengths()
    job = job_for(folder, lengths, options.threads, options.clock, options.rounds)
    figures: dict[Contender, Figures] = {}
    asked = [one for one in contenders(str(options.model), options.vllm) if one.dtype in options.dtype]
    for contender in asked * options.turns:
        print(f"measuring {contender.label}", file=sys.stderr, flush=True)
        measured = run(contender, job)
        figures[contender] = figures[contender].better_of(measured) if contender in figures else measured
    rows = rows_of(figures)
    (print_json if options.format == "json" else print_table)(rows, job)
    exact = [row for row in rows if (row.contender.name, row.contender.dtype) == (OURS, "float32")]
    return 0 if all(row.is_right for row in exact) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtest.engine", description=__doc__, allow_abbrev=False)
    parser.add_argument("model", type=Path, help="a .gguf file, or a Hugging Face folder")
    parser.add_argument("--vllm", type=Path, metavar="PYTHON", help="an interpreter that has vLLM")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="that compute (default: %(default)s)")
    parser.add_argument(
        "--clock", choices=("wall", "cpu"), default="wall", help="cpu, with one thread, is for machines that are busy"
    )
    parser.add_argument("--rounds", type=int, default=3, help="the best of so many counts (default: %(default)s)")
    parser.add_argument(
        "--dtype",
        type=dtypes,
        default=DTYPES,
        metavar="LIST",
        help="those that are measured; float32, the measure of answers, always is (default: float32,bfloat16)",
    )
    parser.add_argument(
        "--turns",
        type=int,
        default=1,
        help="how often all are measured, one after the other; the best counts: for busy machines (default: 1)",
    )
    parser.add_argument("--quick", action="store_true", help="with fewer tokens: less steady")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    return parser


def dtypes(text: str) -> tuple[str, ...]:
    """Raises ArgumentTypeError for one that is not known."""
    asked = text.split(",")
    if unknown := set(asked) - set(DTYPES):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))} is none of {', '.join(DTYPES)}")
    return tuple(dtype for dtype in DTYPES if dtype in asked or dtype == "float32")


if __name__ == "__main__":
    raise SystemExit(main())
