"""A whole Pointsman as a user starts it: `pointsman up` on ports of its own, with the real small model."""

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from loadtest.peers.process import free_ports

MODEL = "smollm2-135m-instruct"
BIN = Path(sys.executable).parent
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Fleet:
    """`lines` holds what the process has printed and nobody has read yet."""

    process: "subprocess.Popen[str]"
    url: str
    admin_url: str
    grpc_address: str
    lines: "queue.Queue[str | None]"

    def engines(self) -> list[psutil.Process]:
        """The engine processes, by port."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        return sorted((child for child in children if "engine" in child.cmdline()), key=port_of)

    def replicas(self) -> list[dict[str, Any]]:
        return list(get_json(f"{self.admin_url}/admin/replicas")["replicas"])

    def wait_line(self, pattern: str, timeout_s: float = 120.0) -> str:
        """Read on until a line matches. Fails with all that came instead."""
        seen: list[str] = []
        deadline = time.monotonic() + timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            try:
                line = self.lines.get(timeout=left_s)
            except queue.Empty:
                break
            if line is None:
                break
            seen.append(line)
            if re.search(pattern, line):
                return line
        raise AssertionError(f"no line like {pattern!r} came, but: {''.join(seen)}")

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(10)


@contextmanager
def running(command: list[str], until: str = "Ctrl-C stops all of it", **environment: str) -> Iterator[Fleet]:
    """Start it, wait for a line that says that it serves, and stop it at the end."""
    port, admin_port, grpc_port = free_ports(3)
    ports = {
        "POINTSMAN_PORT": str(port),
        "POINTSMAN_ADMIN_PORT": str(admin_port),
        "POINTSMAN_GRPC": "true",
        "POINTSMAN_GRPC_PORT": str(grpc_port),
    }
    state = TemporaryDirectory(prefix="pointsman-e2e")
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | ports | {"POINTSMAN_STATE_DIR": state.name} | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    lines: queue.Queue[str | None] = queue.Queue()
    reader = threading.Thread(target=_pump, args=(process, lines))
    reader.start()
    url, admin_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}"
    fleet = Fleet(process, url, admin_url, f"127.0.0.1:{grpc_port}", lines)
    try:
        fleet.wait_line(until, timeout_s=240.0)
        yield fleet
    finally:
        if process.poll() is None:
            fleet.stop()
        reader.join()
        if process.stdout is not None:
            process.stdout.close()
        state.cleanup()


def _pump(process: "subprocess.Popen[str]", lines: "queue.Queue[str | None]") -> None:
    for line in process.stdout or ():
        lines.put(line)
    lines.put(None)


def port_of(process: psutil.Process) -> int:
    words = process.cmdline()
    return int(words[words.index("--port") + 1])


def get_json(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as response:
        return json.loads(response.read())


def wait_until(condition: Any, timeout_s: float, what: str) -> float:
    """Seconds that it took. Polls: for what another process does."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > timeout_s:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        time.sleep(0.05)
    return time.monotonic() - began
