"""Several workers against one: the same load, and what it takes of the busiest worker's CPU time. Clock time would
count the mock and the load, which need a core too."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count

from loadtest.endure.rig import Rig, open_rig
from loadtest.errors import LoadError
from loadtest.peers.accounting import cpu_s, process_tree
from loadtest.peers.point import Load

_CONNECTIONS = 128
_WARM_S = 2.0


@dataclass(frozen=True, slots=True)
class Shared:
    """CPU microseconds a request of all our processes, and of the busiest: what bounds how many can be served."""

    num_workers: int
    num_answers: int
    num_errors: int
    cpu_us_all: float
    cpu_us_busiest: float


def measure_processes(num_workers: int, bodies: str, seconds: float) -> Shared:
    """Raises LoadError where the router does not start."""
    with open_rig([f"--workers={num_workers}"]) as rig:
        seeds = count(1)
        load = Load(bodies=bodies, num_connections=_CONNECTIONS, seconds=_WARM_S, seed=next(seeds))
        rig.generator.measure(load, rig.port, rig.router.pid)
        before = _by_process(rig)
        load = Load(bodies=bodies, num_connections=_CONNECTIONS, seconds=seconds, seed=next(seeds))
        point = rig.generator.measure(load, rig.port, rig.router.pid)
        after = _by_process(rig)
    spent_us = [1e6 * (after[pid] - before.get(pid, 0.0)) for pid in after]
    if not point.num_answers:
        raise LoadError("no request was answered")
    per_answer = 1 / point.num_answers
    return Shared(
        num_workers=num_workers,
        num_answers=point.num_answers,
        num_errors=sum(point.errors.values()),
        cpu_us_all=sum(spent_us) * per_answer,
        cpu_us_busiest=max(spent_us) * per_answer,
    )


def speedup(one: Shared, more: Shared) -> float:
    """How many times as many requests can be served before the busiest process has no time left."""
    return one.cpu_us_busiest / more.cpu_us_busiest


def _by_process(rig: Rig) -> Mapping[int, float]:
    """Seconds of CPU of each process of the router alone, its children not included."""
    total = {pid: cpu_s(pid) for pid in dict.fromkeys(process_tree(rig.router.pid))}
    root = rig.router.pid
    return total | {root: total[root] - sum(spent for pid, spent in total.items() if pid != root)}
