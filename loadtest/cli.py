"""The command `pointsman-load`: puts the parts together. Knows the order of steps and the exit codes.

Exit codes: 0 done, 1 failed (or too many requests did), 2 wrong usage, 130 interrupted.
"""

import asyncio
import importlib
import logging
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TypeVar

import uvloop

from loadtest.cancel import measure_cancels
from loadtest.errors import LoadError, UsageError
from loadtest.flags import parse
from loadtest.peers import report as peers_report
from loadtest.peers.run import default_scratch, measure_peers
from loadtest.peers.settings import PeersSettings
from loadtest.report import exit_code, print_cancels, print_table, write_json
from loadtest.run import measure
from loadtest.settings import CancelSettings, RunSettings
from loadtest.simulator.settings import ReplicaSettings, SimSettings
from loadtest.summary import summarise
from loadtest.trace import load_trace

_Result = TypeVar("_Result")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code."""
    try:
        settings = parse(sys.argv[1:] if argv is None else argv)
        if isinstance(settings, PeersSettings):
            return _peers(settings)
        if isinstance(settings, SimSettings):
            return _sim(settings)
        if isinstance(settings, ReplicaSettings):
            return _replica(settings)
        return _run(settings) if isinstance(settings, RunSettings) else _cancel(settings)
    except LoadError as error:
        print(f"pointsman-load: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:  # the server's are caught where they happen: what is left is --json or --png
        print(f"pointsman-load: cannot write {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _run(settings: RunSettings) -> int:
    _check_folder("--json", settings.json)
    _check_folder("--png", settings.png)
    # Imported before the run and only for --png: a missing matplotlib must not cost a measurement.
    picture = importlib.import_module("loadtest.picture") if settings.png else None
    trace = load_trace(settings.trace, settings.seed) if settings.trace else None
    measured = _wait_for(measure(settings, trace))
    summary = summarise(measured, settings)
    if settings.json is not None:
        write_json(settings.json, summary, settings)
    if picture is not None:
        picture.draw(settings.png, measured, summary)
    if not settings.quiet:
        print_table(summary)
    return exit_code(summary, settings)


def _cancel(settings: CancelSettings) -> int:
    _check_folder("--json", settings.json)
    summary = _wait_for(measure_cancels(settings))
    if settings.json is not None:
        write_json(settings.json, summary, settings)
    if not settings.quiet:
        print_cancels(summary)
    return 0


def _peers(settings: PeersSettings) -> int:
    _check_folder("--png", settings.png)
    picture = importlib.import_module("loadtest.peers.picture") if settings.png else None
    measured = measure_peers(settings, settings.scratch or default_scratch())
    if measured.is_interrupted and not measured.visits:
        return 130
    if picture is not None:
        picture.draw(settings.png, measured.table())
    if settings.format == "json":
        peers_report.print_json(measured)
    else:
        peers_report.print_table(measured)
    return peers_report.exit_code(measured)


def _sim(settings: SimSettings) -> int:
    _check_folder("--png", settings.png)
    # Imported here: no other command needs the engine's and the router's cores.
    return int(importlib.import_module("loadtest.simulator.command").run(settings))


def _replica(settings: ReplicaSettings) -> int:
    logging.basicConfig(level=logging.INFO, format="pointsman-load replica: %(message)s")
    _wait_for(importlib.import_module("loadtest.simulator.serving").serve(settings))
    return 0


def _wait_for(work: Coroutine[None, None, _Result]) -> _Result:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def _check_folder(flag: str, path: Path | None) -> None:
    """A file that cannot be written is told before the run."""
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        raise UsageError(f"{flag}: {path} is not a file in an existing folder")
