"""One router, started, warmed and measured at every point, then stopped. Knows the points; knows no medians."""

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from loadtest.peers.accounting import rss_mb
from loadtest.peers.ask import ask
from loadtest.peers.bodies import NUM_BODIES
from loadtest.peers.configs import MODEL, Site
from loadtest.peers.launch import PEERS, Row
from loadtest.peers.point import Generator, Load, Point
from loadtest.peers.process import Running, free_port, running, wait_until

_READY_S, _WARM_S = 60.0, 2.0
_PREDICTED = re.compile(rb"^pointsman_predicted_cached_tokens_total\{[^}]*\} ([0-9.e+]+)$", re.MULTILINE)

# What is measured, in this order. Streams pass through an idle router (its TTFT), then 6,400 events a second of 64.
POINTS: Mapping[str, Load] = {
    "500b": Load(bodies="500b", num_connections=64, seconds=1),
    "8k": Load(bodies="8k", num_connections=64, seconds=1),
    "64k": Load(bodies="64k", num_connections=64, seconds=1),
    "single": Load(bodies="500b", num_connections=1, seconds=1),
    "ttft": Load(bodies="short-stream", num_connections=1, seconds=1, is_stream=True),
    "events": Load(bodies="long-stream", num_connections=64, seconds=1, is_stream=True),
    "in_step": Load(bodies="streams-in-step", num_connections=64, seconds=1, is_stream=True),
}
WHOLE = ("500b", "8k", "64k")


@dataclass(frozen=True, slots=True)
class Visit:
    """What one visit found. `hit_shares`: of the prompt tokens at a point, those that our router knew to be cached."""

    points: Mapping[str, Point]
    rss_mb: float
    hit_shares: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Visitor:
    """Visits routers in front of the same replicas, with the same load.

    `tokens`: mean prompt length by kind of body; empty without a tokenizer.
    """

    generator: Generator
    replicas: tuple[str, ...]
    scratch: Path
    seconds: float
    tokenizer: Path | None
    tokens: Mapping[str, float]
    seeds: Iterator[int]

    def visit_replicas(self) -> Mapping[str, Point]:
        """The same without a router: what the load and the replicas take of each time."""
        port = int(self.replicas[0].rpartition(":")[2])
        return {name: self.generator.measure(self._load(name, 0), port, None) for name in POINTS}

    def visit(self, row: Row, program: str) -> Visit:
        """Raises Unavailable when the router does not start, answer or last."""
        site = self._site(row)
        with self._launched(row, program, site) as router:
            self._wait_ready(row, router, site)
            self._warm(row, site, router)
            points: dict[str, Point] = {}
            hit_shares: dict[str, float] = {}
            for name in POINTS:
                before = _predicted_tokens(row, site)
                points[name] = self.generator.measure(self._load(name, row.new_sixteenths), site.port, router.pid)
                router.check()
                if name in WHOLE and before is not None and (after := _predicted_tokens(row, site)) is not None:
                    seen = points[name].num_answers * self.tokens[name]
                    hit_shares[name] = (after - before) / seen if seen else 0.0
            return Visit(points, rss_mb(router.pid), hit_shares)

    def _site(self, row: Row) -> Site:
        folder = self.scratch / "sites" / re.sub(r"[^a-z0-9]+", "-", row.name)
        folder.mkdir(parents=True, exist_ok=True)
        return Site(
            folder=folder,
            port=free_port(),
            side_port=free_port(),
            replicas=self.replicas,
            key=self.generator.key,
            tokenizer=self.tokenizer if row.has_tokenizer else None,
        )

    @contextmanager
    def _launched(self, row: Row, program: str, site: Site) -> Iterator[Running]:
        peer = PEERS[row.peer]
        for name, text in peer.files(site).items():
            (site.folder / name).write_text(text)
        cores = self.generator.cores
        command = cores.on(cores.router, [program, *peer.arguments(site), *row.flags])
        # The user's own settings of our router are for other routers than this one.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("POINTSMAN_")}
        with running(command, site.folder / "log", inherited | dict(peer.environment(site))) as router:
            yield router

    def _wait_ready(self, row: Row, router: Running, site: Site) -> None:
        path = PEERS[row.peer].ready_path
        if path is not None:
            wait_until(_asks(lambda: ask(site.port, path)), router, _READY_S)
        chat = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        headers = {"content-type": "application/json", "authorization": f"Bearer {site.key}"}
        wait_until(
            _asks(lambda: ask(site.port, "/v1/chat/completions", json.dumps(chat).encode(), headers)), router, _READY_S
        )
        time.sleep(0.5)  # what it does after its start, such as its first look at the replicas, is not the load's doing

    def _warm(self, row: Row, site: Site, router: Running) -> None:
        """Every body goes to every replica, about: a row whose prefixes were seen before has seen them everywhere."""
        for name in WHOLE:
            load = replace(
                self._load(name, 16 if row.new_sixteenths == 16 else 0),
                num_connections=32,
                seconds=_WARM_S,
                num_requests=len(self.replicas) * NUM_BODIES,
            )
            self.generator.measure(load, site.port, router.pid)
            router.check()

    def _load(self, name: str, new_sixteenths: int) -> Load:
        return replace(POINTS[name], seconds=self.seconds, new_sixteenths=new_sixteenths, seed=next(self.seeds))


def new_seeds() -> Iterator[int]:
    """A seed for each measurement of a run, never twice."""
    return count(1)


def _asks(question: Callable[[], tuple[int, bytes]]) -> Callable[[], str | None]:
    def what_is_missing() -> str | None:
        try:
            status, body = question()
        except OSError as error:
            return str(error)
        return None if status == 200 else f"status {status}: {body[:100].decode(errors='replace')}"

    return what_is_missing


def _predicted_tokens(row: Row, site: Site) -> float | None:
    """Prompt tokens that our router expected in caches so far, by its metrics page.

    None for other routers, and where it reads prompts as text: it guesses their length then.
    """
    if not row.is_ours or not row.has_tokenizer:
        return None
    _, page = ask(site.side_port, "/metrics")
    return sum(float(value) for value in _PREDICTED.findall(page))
