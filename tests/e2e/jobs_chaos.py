"""What a crowd of clients sees of jobs while routers and Redis are killed: submits with keys of idempotency, webhooks,
and the state of each job at the end. Knows the routes; asserts nothing."""

import json
import random
import threading
import time
import urllib.error
import urllib.request
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil

from tests.e2e.company import processes
from tests.e2e.fleet import Fleet
from tests.router.store.servers import Server

SAMPLE_S = 0.1


class Receiver:
    """Takes webhooks: the very first is answered with `first_status` where that is given, else every fifth with an
    error at first. `bodies` by webhook id, `heads` in their order."""

    def __init__(self, first_status: int | None = None) -> None:
        self.heads: list[tuple[dict[str, str], bytes]] = []
        self._first_status = first_status
        self.bodies: dict[str, list[bytes]] = defaultdict(list)
        self._lock = threading.Lock()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                self.send_response(receiver._take(dict(self.headers.items()), body))
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

    def _take(self, headers: dict[str, str], body: bytes) -> int:
        with self._lock:
            id = headers["webhook-id"]
            self.heads.append((headers, body))
            self.bodies[id].append(body)
            if self._first_status is not None:
                return self._first_status if len(self.heads) == 1 else 200
            return 500 if len(self.bodies) % 5 == 0 and len(self.bodies[id]) == 1 else 200


@dataclass(frozen=True)
class Accepted:
    """A job that a client was told of, between these two moments; `other_id` is what its key led to a second time."""

    key: str
    asked_at: float
    told_at: float
    other_id: str | None = None


@dataclass(eq=False)
class Submitters:
    """Clients that submit jobs until they are stopped, each with a key that it uses until it is answered."""

    fleet: Fleet
    hook: str
    accepted: dict[str, Accepted] = field(default_factory=dict)
    num_refused: int = 0

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
            asked_at = time.monotonic()
            while (id := self._ask(key, fields)) is None:
                self.num_refused += 1
                time.sleep(0.1)
                asked_at = time.monotonic()
            told_at = time.monotonic()
            again = self._ask(key, fields) if dice.random() < 0.2 else None
            other_id = again if again not in (id, None) else None
            self.accepted[id] = Accepted(key, asked_at, told_at, other_id)
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


@dataclass(eq=False)
class Rage:
    """Kills routers and Redis at random, each time once clients are served again, so that every blow hits work. With
    `unsynced_s`, Redis loses with each kill what it wrote in so many seconds before, as if the host's power had failed:
    the longest that `appendfsync everysec` leaves unwritten is two."""

    fleet: Fleet
    redis: Server
    crowd: Submitters
    unsynced_s: float = 0.0
    num_routers: int = 0
    redis_deaths: list[float] = field(default_factory=list)
    _sizes: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=200))

    def go_on(self, seconds: float) -> None:
        """At least so long, and until each kind has died a few times."""
        dice, began = random.Random(5), time.monotonic()
        while time.monotonic() - began < seconds or self.num_routers < 3 or len(self.redis_deaths) < 2:
            assert time.monotonic() - began < seconds + 600.0, "there was nobody to kill"
            num_before = len(self.crowd.accepted)
            while len(self.crowd.accepted) < num_before + 5 and time.monotonic() - began < seconds + 600.0:
                self._wait(SAMPLE_S)
            self._wait(dice.uniform(0.5, 3.0))
            if dice.random() < 0.3:
                self._kill_redis()
            elif victims := list(processes(self.fleet, "worker").values()):
                _kill(dice.choice(victims))
                self.num_routers += 1

    def may_have_lost(self, job: Accepted) -> bool:
        """Was it told within what Redis lost?"""
        lost_s = self.unsynced_s + 2 * SAMPLE_S
        return bool(self.unsynced_s) and any(
            job.asked_at <= death and job.told_at >= death - lost_s for death in self.redis_deaths
        )

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._sizes.append((time.monotonic(), self._log.stat().st_size))
            time.sleep(SAMPLE_S)

    def _kill_redis(self) -> None:
        self.redis.stop()  # kill -9
        self.redis_deaths.append(time.monotonic())
        if self.unsynced_s:
            safe = [size for at, size in self._sizes if at <= self.redis_deaths[-1] - self.unsynced_s]
            size = self._log.stat().st_size
            with self._log.open("r+b") as file:
                file.truncate(min(safe[-1] if safe else size, size))
            self._sizes.clear()
        self.redis.start()

    @property
    def _log(self) -> Path:
        return self.redis.folder / "appendonly.aof"


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
