"""One measurement: the load generator runs, and the kernel says what the router used meanwhile.

Knows load.c's arguments and its line of JSON; knows nothing of routers or rounds.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest.errors import LoadError
from loadtest.peers.accounting import busy_s, cpu_s, own_s
from loadtest.peers.process import Cores, run

_GRACE_S = 30.0
ERRORS = ("refused", "cut", "bad_status", "undone", "unfinished")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What to send. `new_sixteenths` of each body's text are new; `seed` must be another each time for that.

    Ends after `seconds`, or once `num_requests` were answered.
    """

    bodies: str
    num_connections: int
    seconds: float
    is_stream: bool = False
    new_sixteenths: int = 0
    seed: int = 1
    num_requests: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What came of it. Times in microseconds; None: there was nothing to measure it by.

    All requests count, those included that ended after the load's time. `cpu_us` is the router's CPU time meanwhile;
    `foreign_cpu`: how many cores programs not ours kept busy.
    """

    num_answers: int
    num_events: int
    requests_per_s: float
    events_per_s: float
    total_p50_us: float | None
    first_event_p50_us: float | None
    event_p50_us: float | None
    event_p99_us: float | None
    errors: Mapping[str, int]
    first_bad_status: int | None
    cpu_us: float
    foreign_cpu: float

    @property
    def cpu_us_per_request(self) -> float | None:
        return self.cpu_us / self.num_answers if self.num_answers else None

    @property
    def cpu_us_per_event(self) -> float | None:
        return self.cpu_us / self.num_events if self.num_events else None


@dataclass(frozen=True, slots=True)
class Generator:
    """The load generator's program, on its core, beside the replicas (`mock_pid`)."""

    program: Path
    bodies: Path
    cores: Cores
    mock_pid: int
    key: str

    def measure(self, load: Load, port: int, router_pid: int | None) -> Point:
        """Raises LoadError when the generator itself fails, Unavailable when it does not end."""
        watched = [pid for pid in (router_pid, self.mock_pid) if pid is not None]
        cpu, busy, own, start = _cpu_us(router_pid), busy_s(), _ours_s(watched), time.monotonic()
        code, printed = run(self._command(load, port), load.seconds + _GRACE_S)
        if code != 0:
            raise LoadError(f"the load generator failed: {printed.strip()}")
        foreign_s = (busy_s() - busy) - (_ours_s(watched) - own)
        return parse(printed, _cpu_us(router_pid) - cpu, max(0.0, foreign_s / (time.monotonic() - start)))

    def _command(self, load: Load, port: int) -> Sequence[str]:
        arguments = {
            "port": port,
            "connections": load.num_connections,
            "seconds": load.seconds,
            "requests": load.num_requests or 0,
            "bodies": self.bodies / load.bodies,
            "fresh": load.new_sixteenths,
            "seed": load.seed,
            "done": int(load.is_stream),
            "key": self.key,
        }
        words = [f"{name}={value}" for name, value in arguments.items()]
        return self.cores.on(self.cores.load, [str(self.program), *words])


def parse(printed: str, cpu_us: float, foreign_cpu: float) -> Point:
    """The point of load.c's line. Raises LoadError for another line."""
    try:
        said = json.loads(printed)
        return Point(
            num_answers=said["answers"],
            num_events=said["events"],
            requests_per_s=said["requests_per_s"],
            events_per_s=said["events_per_s"],
            total_p50_us=said["total_p50_us"],
            first_event_p50_us=said["first_event_p50_us"],
            event_p50_us=said["event_p50_us"],
            event_p99_us=said["event_p99_us"],
            errors={name: said[name] for name in ERRORS if said[name]},
            first_bad_status=said["first_bad_status"] or None,
            cpu_us=cpu_us,
            foreign_cpu=foreign_cpu,
        )
    except (ValueError, KeyError, TypeError):
        raise LoadError(f"the load generator printed {printed[:200]!r}") from None


def _cpu_us(pid: int | None) -> float:
    return cpu_s(pid) * 1e6 if pid is not None else 0.0


def _ours_s(pids: Sequence[int]) -> float:
    return own_s() + sum(map(cpu_s, pids))
