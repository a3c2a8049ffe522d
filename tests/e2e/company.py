"""Several router processes as one fleet, and what asks it: single requests, crowds, and clients that never stop. Knows
how `serve --workers` is started and its admin pages; knows no test.
"""

import http.client
import json
import re
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit

import psutil

from tests.e2e.fake_replica import FakeReplica
from tests.e2e.fleet import BIN, Fleet, running

DONE = b"data: [DONE]\n\n"


@contextmanager
def company(replicas: Sequence[FakeReplica], workers: int = 2, **settings: object) -> Iterator[Fleet]:
    """`pointsman serve --workers N` in front of these replicas."""
    command = [str(BIN / "python"), "-m", "router", "serve", "--workers", str(workers)]
    for replica in replicas:
        command += ["--replica", replica.url]
    environment = {f"POINTSMAN_{name.upper()}": str(value) for name, value in settings.items()}
    with running(command, until='"message": "serving"', **environment) as fleet:
        yield fleet


def processes(fleet: Fleet, kind: str) -> dict[int, psutil.Process]:
    """The supervisor's processes of one kind, by pid."""
    children = psutil.Process(fleet.process.pid).children()
    return {child.pid: child for child in children if kind in child.cmdline()}


def post(
    connection: http.client.HTTPConnection, words: str, num_tokens: int, pace_s: float
) -> http.client.HTTPResponse:
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": words}],
        "stream": True,
        "max_tokens": num_tokens,
        "user": str(pace_s),
    }
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    return connection.getresponse()


def connect(fleet: Fleet) -> http.client.HTTPConnection:
    address = urlsplit(fleet.url)
    return http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)


def ask(fleet: Fleet, words: str = "hello", num_tokens: int = 2, pace_s: float = 0.0) -> tuple[int, bytes, str]:
    """Status, body and replica of one request on a connection of its own. A cut answer is what came of it."""
    connection = connect(fleet)
    try:
        response = post(connection, words, num_tokens, pace_s)
        return response.status, response.read(), response.headers.get("x-pointsman-replica", "")
    except http.client.IncompleteRead as cut:
        return 200, cut.partial, ""
    except (http.client.HTTPException, OSError):
        return 0, b"", ""
    finally:
        connection.close()


class Crowd:
    """Requests at once, each in a thread. `answers` fills as they end."""

    def __init__(self, fleet: Fleet, number: int, num_tokens: int, pace_s: float) -> None:
        self.answers: list[tuple[int, bytes, str]] = []
        self._threads = [
            threading.Thread(target=lambda: self.answers.append(ask(fleet, "story", num_tokens, pace_s)))
            for _ in range(number)
        ]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    @property
    def whole(self) -> list[bytes]:
        return [body for status, body, _ in self.answers if status == 200 and body.endswith(DONE)]


class Steady:
    """Clients that ask one request after the other on connections that they keep, until they are stopped."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        self.num_asked = 0
        self.failures: list[str] = []
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._go_on, args=(fleet,)) for _ in range(number)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _go_on(self, fleet: Fleet) -> None:
        connection = connect(fleet)
        while not self._is_over.is_set():
            try:
                response = post(connection, "steady", 3, 0.01)
                body = response.read()
                if response.status != 200 or not body.endswith(DONE):
                    self.failures.append(f"{response.status} {body[:200]!r}")
            except (http.client.HTTPException, OSError) as error:
                self.failures.append(repr(error))
                connection.close()
            self.num_asked += 1
        connection.close()


def figures(fleet: Fleet) -> dict[str, float]:
    """The admin port's metrics, by name and labels."""
    with urllib.request.urlopen(f"{fleet.admin_url}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def counted(fleet: Fleet) -> dict[str, float]:
    return {name: value for name, value in figures(fleet).items() if re.search(r"_(total|count|sum|bucket)\b", name)}


def in_flight(fleet: Fleet) -> int:
    return int(sum(row["in_flight"] for row in fleet.replicas()))


def restart(fleet: Fleet) -> None:
    request = urllib.request.Request(f"{fleet.admin_url}/admin/workers/restart", b"")
    with urllib.request.urlopen(request, timeout=60) as response:
        assert json.load(response) == {"workers": 2}
