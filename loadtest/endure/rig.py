"""Our router between a fast mock and whoever asks, for as long as a block lasts. Knows how both are started and what
the router says of itself; sends no load."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from loadtest.errors import LoadError
from loadtest.peers.ask import ask
from loadtest.peers.bodies import write_bodies
from loadtest.peers.install import compile_c
from loadtest.peers.point import Generator
from loadtest.peers.process import Cores, Running, Unavailable, free_port, running, wait_until
from loadtest.peers.run import default_scratch
from loadtest.peers.tokenizer import tokenizer_folder

NUM_REPLICAS = 4
_READY_S = 60.0
_KEY = "sk-endure"


@dataclass(frozen=True, slots=True)
class Rig:
    """A router on `port`, its other port, and the load generator beside it."""

    router: Running
    port: int
    admin_port: int
    generator: Generator

    def in_flight(self) -> int:
        """Open requests on all replicas, by the router's own count."""
        rows = json.loads(ask(self.admin_port, "/admin/replicas")[1])["replicas"]
        return sum(row["in_flight"] for row in rows)


@contextmanager
def open_rig(
    flags: Sequence[str] = (), *, has_tokenizer: bool = True, name: str = "endure", is_pinned: bool = False
) -> Iterator[Rig]:
    """Start both, wait until the router is ready. Raises LoadError in the words of the program that fails.

    `name`, of its logs, is another for each rig that is open at the same time. `is_pinned`: all processes of the router
    have one core, by turns, and the mock shares that of the load; for CPU time that what else runs here changes little.
    """
    scratch, cores = default_scratch(), Cores.choose()
    log, mock_log = scratch / f"{name}.log", scratch / f"{name}-mock.log"
    scratch.mkdir(parents=True, exist_ok=True)
    mock, load = compile_c("mock", scratch), compile_c("load", scratch)
    write_bodies(scratch / "bodies")
    with ExitStack() as stack:
        try:
            tokenizer = tokenizer_folder(scratch) if has_tokenizer else None
            command = [str(mock), str(NUM_REPLICAS)]
            command = cores.on(cores.load, command) if is_pinned else command
            replicas = stack.enter_context(running(command, mock_log, os.environ))
            urls = _urls(replicas, mock_log)
            port, admin_port = free_port(), free_port()
            specs = [f"--replica={url}" + (f",tokenizer={tokenizer}" if tokenizer else "") for url in urls]
            ports = [f"--port={port}", f"--admin-port={admin_port}", "--log-level=warning"]
            command = [sys.executable, "-m", "router", "serve", *ports, *specs, *flags]
            command = _by_turns(cores, command) if is_pinned else command
            router = stack.enter_context(running(command, log, os.environ))
            wait_until(lambda: _what_is_missing(port), router, _READY_S)
        except Unavailable as error:
            raise LoadError(str(error)) from None
        yield Rig(router, port, admin_port, Generator(load, scratch / "bodies", cores, replicas.pid, _KEY))


def _by_turns(cores: Cores, command: list[str]) -> list[str]:
    """On the router's core before all others, and none of its processes for longer than the rest: `Cores.on` would let
    the one that never waits keep it."""
    return [*(("chrt", "-r", "5") if cores.is_first else ()), "taskset", "-c", str(cores.router), *command]


def _urls(replicas: Running, log: Path) -> list[str]:
    wait_until(lambda: None if log.read_text().endswith("\n") else "no ports yet", replicas, _READY_S)
    return [f"http://127.0.0.1:{port}" for port in log.read_text().split()]


def _what_is_missing(port: int) -> str | None:
    try:
        status, _ = ask(port, "/readyz")
    except OSError as error:
        return str(error)
    return None if status == 200 else f"status {status}"
