"""Starts programs on a core of their own and stops them. Knows processes, ports and logs; knows no router."""

import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import Self

from loadtest.errors import LoadError

_STOP_S = 6.0
_FIRST_PORT = 10_000
# RFC 6335.
_FIRST_DYNAMIC_PORT = 49_152
_LOG_BYTES = 65536


class Unavailable(Exception):
    """A router cannot be measured here; the message says why, in what its program said where it said anything."""


@dataclass(frozen=True, slots=True)
class Cores:
    """One core for the router, one for the replicas and the load. `is_first`: no other program can delay ours."""

    router: int
    load: int
    is_first: bool

    @classmethod
    def choose(cls) -> Self:
        """The first two that this process may use. Raises LoadError where there are none, or no way to choose."""
        free = sorted(os.sched_getaffinity(0))
        if len(free) < 2:
            raise LoadError("needs two CPU cores: one for the router, one for the replicas and the load")
        if which("taskset") is None:
            raise LoadError("needs taskset (util-linux), to give each program its core")
        # Real time: a batch job on the same machine takes caches from us then, but delays no wake-up.
        test = ("chrt", "-f", "5", "true")
        can_be_first = which("chrt") is not None and subprocess.run(test, capture_output=True).returncode == 0
        return cls(free[0], free[1], can_be_first)

    def on(self, core: int, command: Sequence[str]) -> list[str]:
        """The command, as run on that core."""
        return [*(("chrt", "-f", "5") if self.is_first else ()), "taskset", "-c", str(core), *command]


@dataclass(eq=False, slots=True)
class Running:
    """A started program: `pid` also names its process group."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def check(self) -> None:
        """Raises Unavailable if it has ended."""
        code = self.process.poll()
        if code is not None:
            raise Unavailable(f"ended with {_ending(code)}: {last_words(self.log)}")

    def __repr__(self) -> str:
        return f"<Running {self.pid} {'ended' if self.process.poll() is not None else 'up'}>"


@contextmanager
def running(
    command: Sequence[str], log: Path, environment: Mapping[str, str], stdin: int = subprocess.DEVNULL
) -> Iterator[Running]:
    """Start a program in a process group of its own; on exit the group is gone. Raises Unavailable."""
    with log.open("wb") as sink:
        try:
            process = subprocess.Popen(
                command, stdin=stdin, stdout=sink, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )
        except OSError as error:
            raise Unavailable(f"cannot be started: {error}") from None
    try:
        yield Running(process, log)
    finally:
        stop(process)


def stop(process: "subprocess.Popen[bytes]") -> None:
    """End a process and its group, by force where it does not go by itself."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        # Also what the leader has left behind.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in filter(None, (process.stdin, process.stdout)):
            pipe.close()


def run(command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Run to the end: exit code and all that it printed. Raises Unavailable when it cannot start or takes too long."""
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise Unavailable(f"cannot be started: {error}") from None
    try:
        printed, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{Path(command[0]).name}: not done after {timeout_s:g} s") from None
    finally:
        stop(process)
    return process.returncode, printed.decode(errors="replace")


def wait_until(what_is_missing: Callable[[], str | None], program: Running, timeout_s: float) -> None:
    """Ask until nothing is missing. Raises Unavailable with the program's last words when it ends or takes too long."""
    deadline = time.monotonic() + timeout_s
    while True:
        program.check()
        missing = what_is_missing()
        if missing is None:
            return
        if time.monotonic() > deadline:
            raise Unavailable(f"not ready after {timeout_s:g} s ({missing}): {last_words(program.log)}")
        time.sleep(0.1)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on just now."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Different ports that nobody listens on, outside the range from which the kernel gives ports to who names none.

    One from inside that range could be given away again before its server starts.
    """
    with ExitStack() as held:
        return [held.enter_context(_bound()).getsockname()[1] for _ in range(count)]


def _bound() -> socket.socket:
    last = _first_given_port() - 1
    while True:
        holder = socket.socket()
        try:
            holder.bind(("127.0.0.1", random.randint(_FIRST_PORT, last)))
        except OSError:
            holder.close()
            continue
        return holder


def _first_given_port() -> int:
    with suppress(OSError, ValueError):
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        if first > 2 * _FIRST_PORT:
            return first
    return _FIRST_DYNAMIC_PORT


def last_words(log: Path) -> str:
    """The last line of a log that says something, cut to 200 characters."""
    text = log.read_bytes()[-_LOG_BYTES:].decode(errors="replace")
    return last_line(text) or "it printed nothing"


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""


def _ending(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
