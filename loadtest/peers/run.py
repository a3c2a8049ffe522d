"""Measures routers in turn: the order of things. Knows rounds, and who stops what; judges no figure.

Interleaved: each round visits every router, so that a change of the machine's mood falls on all of them.
"""

import os
import secrets
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.errors import UsageError
from loadtest.flags import nearest
from loadtest.peers.bodies import KINDS, conversations, write_bodies
from loadtest.peers.install import compile_c, program_of
from loadtest.peers.launch import FEATURES, OURS, PEERS, Row, rows
from loadtest.peers.point import Generator
from loadtest.peers.process import Cores, Running, Unavailable, running, wait_until
from loadtest.peers.results import YARDSTICK, Direct, Figures, figures_of
from loadtest.peers.settings import PeersSettings
from loadtest.peers.tokenizer import count_tokens, tokenizer_folder
from loadtest.peers.visit import WHOLE, Visit, Visitor, new_seeds

NUM_REPLICAS = 4
_MOCK_START_S = 10.0


@dataclass(eq=False, slots=True)
class Measured:
    """What was measured so far. `failures`: why a row could not be, or not any more."""

    rows: tuple[Row, ...]
    cores: Cores
    visits: dict[Row, list[Visit]] = field(default_factory=dict)
    failures: dict[Row, str] = field(default_factory=dict)
    directs: list[Direct] = field(default_factory=list)
    is_interrupted: bool = False

    def table(self) -> dict[Row, Figures]:
        return {row: figures_of(self.visits.get(row, []), self.directs, self.failures.get(row)) for row in self.rows}

    def __repr__(self) -> str:
        return f"<Measured {len(self.rows)} rows, {len(self.directs)} rounds, {len(self.failures)} failed>"


def chosen_rows(settings: PeersSettings) -> tuple[Row, ...]:
    """The rows to measure. Raises UsageError for a name that there is none of."""
    if settings.features:
        return (*rows((YARDSTICK,)), OURS[0], *FEATURES)
    try:
        return rows(settings.names())
    except KeyError as error:
        name, known = error.args[0], [row.name for row in rows(None)]
        raise UsageError(f"--only: {name!r} is not one of {', '.join(known)}{nearest(name, known)}") from None


def default_scratch() -> Path:
    """Where installed routers are kept from run to run."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "pointsman" / "peers"


def measure_peers(settings: PeersSettings, scratch: Path) -> Measured:
    """Install, build, then measure every row in every round. What was measured until an interrupt is kept.

    Raises LoadError where nothing can be measured at all.
    """
    measured = Measured(chosen_rows(settings), Cores.choose())
    with _stops_on_sigterm():
        try:
            _measure(measured, settings, scratch)
        except KeyboardInterrupt:
            measured.is_interrupted = True
    return measured


def _measure(measured: Measured, settings: PeersSettings, scratch: Path) -> None:
    scratch.mkdir(parents=True, exist_ok=True)
    mock, load = compile_c("mock", scratch), compile_c("load", scratch)
    write_bodies(scratch / "bodies")
    programs = _install(measured, scratch)
    tokenizer = _tokenizer(measured, scratch)
    with _replicas(measured.cores, mock, scratch) as (process, urls):
        generator = Generator(load, scratch / "bodies", measured.cores, process.pid, "sk-" + secrets.token_hex(16))
        tokens = {kind.name: count_tokens(tokenizer, conversations(kind.num_bytes)) for kind in KINDS
                  if kind.name in WHOLE and tokenizer is not None}  # fmt: skip
        visitor = Visitor(generator, urls, scratch, settings.seconds, tokenizer, tokens, new_seeds())
        for number in range(1, settings.rounds + 1):
            _tell(f"round {number} of {settings.rounds}")
            measured.directs.append(visitor.visit_replicas())
            for row in measured.rows:
                if row not in measured.failures:
                    _visit(measured, visitor, row, programs[row.peer])


def _visit(measured: Measured, visitor: Visitor, row: Row, program: str) -> None:
    try:
        visit = visitor.visit(row, program)
    except Unavailable as error:
        measured.failures[row] = str(error)
        _tell(f"  {row.name}: {error}")
        return
    measured.visits.setdefault(row, []).append(visit)
    costs = [visit.points[name].cpu_us_per_request for name in WHOLE]
    costs += [visit.points[name].cpu_us_per_event for name in ("events", "in_step")]
    _tell(f"  {row.name}: " + " / ".join("-" if cost is None else f"{cost:,.1f}" for cost in costs) + " µs")


def _install(measured: Measured, scratch: Path) -> Mapping[str, str]:
    """Programs of the chosen routers, by peer."""
    programs: dict[str, str] = {}
    for name in dict.fromkeys(row.peer for row in measured.rows):
        _tell(f"preparing {name}")
        try:
            programs[name] = program_of(PEERS[name], scratch / name)
        except Unavailable as error:
            _fail(measured, [row for row in measured.rows if row.peer == name], str(error))
    return programs


def _tokenizer(measured: Measured, scratch: Path) -> Path | None:
    """The tokenizer that our rows need; where it cannot be had, they fail."""
    wanting = [row for row in measured.rows if PEERS[row.peer].needs_tokenizer and row.has_tokenizer]
    if not wanting:
        return None
    try:
        return tokenizer_folder(scratch)
    except Unavailable as error:
        _fail(measured, wanting, f"no tokenizer: the engine {error}")
        return None


def _fail(measured: Measured, rows: Sequence[Row], reason: str) -> None:
    for row in rows:
        measured.failures[row] = reason
        _tell(f"  {row.name}: {reason}")


@contextmanager
def _replicas(cores: Cores, mock: Path, scratch: Path) -> Iterator[tuple[Running, tuple[str, ...]]]:
    """The replicas' process and their URLs."""
    log = scratch / "mock.log"
    with running(cores.on(cores.load, [str(mock), str(NUM_REPLICAS)]), log, os.environ) as process:
        wait_until(lambda: None if log.read_text().endswith("\n") else "no ports yet", process, _MOCK_START_S)
        yield process, tuple(f"http://127.0.0.1:{port}" for port in log.read_text().split())


@contextmanager
def _stops_on_sigterm() -> Iterator[None]:
    """Whoever ends us by SIGTERM gets the same clean-up as by Ctrl-C."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
