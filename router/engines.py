"""Engine replicas of this host as child processes: start, start again, stop. Knows processes and ports; serving and
what a user is told are others' matter.

An engine gets a pipe as its standard input and ends when it closes, so none outlives this process, however it ends.
"""

import asyncio
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO

STOP_S = 1.5
RESTART_AFTER_S = 1.0
MOST_RESTARTS = 3


class FetchFailed(Exception):
    """The fetcher has said why on standard error."""


async def fetch(model: str) -> str:
    """The path of a model known by name, fetched if need be. Raises FetchFailed. Cancelled, it stops the fetcher."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "engine.fetch", model),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGTERM)  # with the downloader that it may have started
    if process.returncode != 0:
        raise FetchFailed(model)
    return output.decode().strip().splitlines()[-1]


@dataclass(eq=False, slots=True)
class Engine:
    """One engine process on ports of its own. What it writes goes to `log`, for its last words.

    `holders` are bound to the ports and never listen: nobody else is given a port before the engine listens at it,
    nor between its death and its return.
    """

    name: str
    port: int
    grpc_port: int
    holders: Sequence[socket.socket] = ()
    log: IO[bytes] = field(default_factory=tempfile.TemporaryFile)
    process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def address(self) -> str:
        """As `--replica` takes it: it tells of its KV blocks over gRPC."""
        return f"{self.url},kv=grpc://127.0.0.1:{self.grpc_port}"

    @property
    def is_dead(self) -> bool:
        return self.process is not None and self.process.returncode is not None

    async def start(self, arguments: Sequence[str]) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "engine", *arguments, "--port", str(self.port), "--exit-with-parent"),
            *("--grpc-port", str(self.grpc_port)),
            stdin=asyncio.subprocess.PIPE,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,  # Ctrl-C in the terminal is for us: we stop the engines in order
        )

    async def keep_alive(self, arguments: Sequence[str], tell: Callable[[str], None]) -> None:
        """Start it again when it dies, a few times. Runs until cancelled."""
        for num_restarts in range(MOST_RESTARTS + 1):
            how = await self._death()
            if num_restarts == MOST_RESTARTS:
                tell(f"Replica {self.name} died again ({how}); it stays down: {self.last_words()}")
                return
            tell(f"Replica {self.name} died ({how}); starting it again.")
            await asyncio.sleep(RESTART_AFTER_S)
            await self.start(arguments)

    def last_words(self) -> str:
        """The last line that the process wrote."""
        size = self.log.seek(0, os.SEEK_END)
        self.log.seek(max(0, size - 4096))
        lines = self.log.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def close(self) -> None:
        """Gives its ports back and forgets its log; the process has ended."""
        self.log.close()
        for holder in self.holders:
            holder.close()

    async def _death(self) -> str:
        assert self.process is not None
        code = await self.process.wait()
        return f"signal {-code}" if code < 0 else f"exit status {code}"

    def __repr__(self) -> str:
        if self.process is None:
            return f"<Engine {self.name} on {self.port} not started>"
        state = "running" if self.process.returncode is None else f"ended with {self.process.returncode}"
        return f"<Engine {self.name} on {self.port} pid {self.process.pid} {state}>"


def plan(num_replicas: int, taken: Container[int]) -> list[Engine]:
    """Engines on free ports, none of them `taken` (the router's own, which it has yet to open)."""
    return [_engine(f"r{i + 1}", _hold(taken), _hold(taken)) for i in range(num_replicas)]


def _engine(name: str, http: socket.socket, grpc: socket.socket) -> Engine:
    return Engine(name, http.getsockname()[1], grpc.getsockname()[1], (http, grpc))


def _hold(taken: Container[int]) -> socket.socket:
    """Bound to a free port. SO_REUSEADDR on both sides lets one listener in beside it."""
    while True:
        holder = socket.socket()
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        if holder.getsockname()[1] not in taken:
            return holder
        holder.close()


async def stop(engines: Sequence[Engine]) -> None:
    """Ask first; kill what has not ended after `STOP_S`."""
    running = [engine.process for engine in engines if engine.process is not None and not engine.is_dead]
    for process in running:
        process.terminate()
    with suppress(TimeoutError):
        async with asyncio.timeout(STOP_S):
            await asyncio.gather(*(process.wait() for process in running))
    for process in running:
        if process.returncode is None:
            process.kill()
            await process.wait()
    for engine in engines:
        engine.close()
