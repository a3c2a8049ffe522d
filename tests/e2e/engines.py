"""Bundled engines with the real small model, each a process of its own, for tests that need more than `up` starts."""

import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from engine.fetch import fetch
from loadtest.peers.process import free_ports
from tests.e2e.fleet import MODEL, ROOT, wait_until

START_S = 240.0


@dataclass(eq=False, slots=True)
class EngineProcess:
    """`flags` are its own besides model and port."""

    port: int
    flags: Sequence[str]
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def id(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "engine", "--model", str(fetch(MODEL)), "--served-model-name", MODEL]
        command += ["--port", str(self.port), "--threads", "1", "--kv-cache-gib", "0.1", "--exit-with-parent"]
        self.process = subprocess.Popen([*command, *self.flags], cwd=ROOT, stdin=subprocess.PIPE)

    def wait_ready(self) -> None:
        wait_until(self._answers, START_S, f"{self.id} answers")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            if self.process.stdin is not None:
                self.process.stdin.close()
            self.process = None

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, "it ended"
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


@contextmanager
def engine_processes(*flags: Sequence[str]) -> Iterator[list[EngineProcess]]:
    """One for each list of flags; all answer."""
    engines = [EngineProcess(port, each) for port, each in zip(free_ports(len(flags)), flags, strict=True)]
    try:
        for engine in engines:
            engine.start()
        for engine in engines:
            engine.wait_ready()
        yield engines
    finally:
        for engine in engines:
            engine.kill()
