"""Starts what is measured: the replica, the bare proxy, routers; each on its core. Knows commands and ports."""

import os
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from loadtest.errors import LoadError
from loadtest.peers.process import Cores, Running, Unavailable, free_port, running, wait_until

_START_S = 60.0
_PROGRAM = Path(sys.executable).parent / "pointsman"


@dataclass(frozen=True, slots=True)
class Router:
    """One router process, and where its clients ask."""

    process: Running
    http_port: int
    grpc_port: int


@dataclass(eq=False, slots=True)
class Rig:
    """All programs end with the block that opened it."""

    stack: ExitStack
    cores: Cores
    scratch: Path
    source_grpc: int = 0
    source_http: int = 0

    def open_source(self, interval_ms: float) -> None:
        self.source_grpc, self.source_http = free_port(), free_port()
        ports = [str(self.source_grpc), str(self.source_http), str(interval_ms)]
        process = self._start(self.cores.load, [sys.executable, "-m", "loadtest.grpc.source", *ports])
        _await_http(process, self.source_http, "/health")

    def open_bare(self) -> tuple[Running, int]:
        port = free_port()
        command = [sys.executable, "-m", "loadtest.grpc.bare", str(port), str(self.source_grpc)]
        process = self._start(self.cores.router, command)
        _await_grpc(process, port)
        return process, port

    def open_router(self, *, upstream: str) -> Router:
        """`upstream`: http or grpc."""
        http_port, grpc_port, admin_port = free_port(), free_port(), free_port()
        replica = f"{upstream}://127.0.0.1:{self.source_grpc if upstream == 'grpc' else self.source_http}"
        ports = ["--port", str(http_port), "--grpc", "--grpc-port", str(grpc_port), "--admin-port", str(admin_port)]
        command = [str(_PROGRAM), "serve", "--replica", replica, *ports]
        process = self._start(self.cores.router, command)
        _await_http(process, http_port, "/readyz")
        return Router(process, http_port, grpc_port)

    def _start(self, core: int, command: Sequence[str]) -> Running:
        log = self.scratch / f"{free_port()}.log"
        return self.stack.enter_context(running(self.cores.on(core, command), log, os.environ))


@contextmanager
def open_rig() -> Iterator[Rig]:
    """Raises LoadError where a program does not start."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="loadtest-grpc-")))
        try:
            yield Rig(stack, Cores.choose(), scratch)
        except Unavailable as error:
            raise LoadError(f"a program does not start: {error}") from None


def _await_http(process: Running, port: int, path: str) -> None:
    def missing() -> str | None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=1.0).close()
        except (OSError, urllib.error.HTTPError) as error:
            return str(error)
        return None

    wait_until(missing, process, _START_S)


def _await_grpc(process: Running, port: int) -> None:
    def missing() -> str | None:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            try:
                grpc.channel_ready_future(channel).result(timeout=1.0)
            except grpc.FutureTimeoutError:
                return "it does not answer"
        return None

    wait_until(missing, process, _START_S)
