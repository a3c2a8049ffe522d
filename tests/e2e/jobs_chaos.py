"""What a crowd of clients sees of jobs while routers and Redis are killed: submits with keys of idempotency, webhooks,
and the state of each job at the end. Knows the routes; asserts nothing."""

import json
import random
import threading
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import psutil

from tests.e2e.company import processes
from tests.e2e.fleet import Fleet
from tests.router.store.servers import Server


class Receiver:
    """Takes webhooks; every fifth is answered with an error at first. `bodies` by webhook id."""

    def __init__(self) -> None:
        self.bodies: dict[str, list[bytes]] = defaultdict(list)
        self._lock = threading.Lock()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                self.send_response(receiver._take(str(self.headers["webhook-id"]), body))
                self.end_headers()

            def log_message(self, format: str, *arguments: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"

    @contextmanager
    def serving(self) -> Iterator["Receiver"]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def _take(self, id: str, body: bytes) -> int:
        with self._lock:
            self.bodies[id].append(body)
            return 500 if len(self.bodies) % 5 == 0 and len(self.bodies[id]) == 1 else 200


@dataclass(eq=False)
class Submitters:
    """Clients that submit jobs until they are stopped, each with a key that it uses until it is answered."""

    fleet: Fleet
    hook: str
    accepted: dict[str, str] = field(default_factory=dict)
    num_refused: int = 0
    num_second_ids: int = 0

    def __post_init__(self) -> None:
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._submit, args=(number,)) for number in range(3)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _submit(self, number: int) -> None:
        dice, count = random.Random(number), 0
        while not self._is_over.is_set():
            key, count = f"{number}-{count}", count + 1
            fields = {"model": "m", "messages": [{"role": "user", "content": key}], "user": str(dice.random() * 0.3)}
            # Whoever is not answered asks again, as clients do.
            while (id := self._ask(key, fields)) is None:
                self.num_refused += 1
                time.sleep(0.1)
            if dice.random() < 0.2 and self._ask(key, fields) not in (id, None):
                self.num_second_ids += 1
            self.accepted[id] = key
            time.sleep(0.02)

    def _ask(self, key: str, fields: dict[str, Any]) -> str | None:
        options = {"webhook_endpoint": self.hook, "max_time_in_queue_seconds": 600}
        retries = {"inference_retry_config": {"max_attempts": 10, "initial_delay_ms": 50}}
        request = urllib.request.Request(
            f"{self.fleet.url}/v1/async/chat/completions",
            json.dumps(fields | options | retries).encode(),
            {"content-type": "application/json", "idempotency-key": key},
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return str(json.loads(response.read())["id"])
        except (OSError, ValueError):
            return None


def rage(fleet: Fleet, redis: Server, seconds: float) -> dict[str, int]:
    """Kill routers and Redis at random; how often each."""
    dice, kills = random.Random(5), {"router": 0, "redis": 0}
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(dice.uniform(1.0, 3.0))
        if dice.random() < 0.3:
            redis.restart()  # kill -9, and the same files
            kills["redis"] += 1
        else:
            victims = list(processes(fleet, "worker").values())
            if victims:
                _kill(dice.choice(victims))
                kills["router"] += 1
    return kills


def state_of(fleet: Fleet, id: str) -> dict[str, Any] | None:
    try:
        with urllib.request.urlopen(f"{fleet.url}/v1/async/{id}", timeout=10) as response:
            found: dict[str, Any] = json.loads(response.read())
            return found
    except urllib.error.HTTPError as error:
        return {"status": "unknown"} if error.code == 404 else None
    except OSError:
        return None


def _kill(victim: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        victim.kill()
