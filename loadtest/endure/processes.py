"""Several workers against one: the same load by turns, and its CPU time, in all and of the busiest process.
Clock time would count the mock and the load, which need a core too; so all workers share one core, and each is taken to
need on a core of its own what it took there."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from itertools import count
from statistics import median

from loadtest.endure.rig import Rig, open_rig
from loadtest.errors import LoadError
from loadtest.peers.accounting import cpu_s, process_tree
from loadtest.peers.point import Load

_CONNECTIONS = 128


@dataclass(frozen=True, slots=True)
class Shared:
    """CPU microseconds a request of all our processes, and of the busiest: what bounds how many can be served."""

    num_workers: int
    num_answers: float
    num_errors: float
    cpu_us_all: float
    cpu_us_busiest: float


def measure_processes(numbers: Sequence[int], bodies: str, seconds: float, rounds: int) -> list[Shared]:
    """For each number of workers, medians over rounds that take turns: what else the machine does falls on all alike.

    Raises LoadError where a router does not start or answer.
    """
    with ExitStack() as stack:
        rigs = [
            stack.enter_context(open_rig([f"--workers={number}"], name=f"endure-{at}", is_pinned=True))
            for at, number in enumerate(numbers)
        ]
        seeds = count(1)

        def turn() -> list[Shared]:
            load = Load(bodies=bodies, num_connections=_CONNECTIONS, seconds=seconds, seed=next(seeds))
            return [_measure(rig, number, load) for rig, number in zip(rigs, numbers, strict=True)]

        turn()  # warms
        found = [turn() for _ in range(rounds)]
    return [_medians(each) for each in zip(*found, strict=True)]


def speedup(one: Shared, more: Shared) -> float:
    """How many times as many requests can be served before the busiest process has no time left."""
    return one.cpu_us_busiest / more.cpu_us_busiest


def speedup_evenly(one: Shared, more: Shared) -> float:
    """The same, were connections spread evenly: the kernel spreads them by a hash, the fewer the less evenly."""
    return more.num_workers * one.cpu_us_all / (one.num_workers * more.cpu_us_all)


def _measure(rig: Rig, num_workers: int, load: Load) -> Shared:
    before = _by_process(rig)
    point = rig.generator.measure(load, rig.port, rig.router.pid)
    spent_us = [1e6 * (spent - before.get(pid, 0.0)) for pid, spent in _by_process(rig).items()]
    if not point.num_answers:
        raise LoadError("no request was answered")
    per_answer = 1 / point.num_answers
    num_errors = sum(point.errors.values())
    return Shared(num_workers, point.num_answers, num_errors, sum(spent_us) * per_answer, max(spent_us) * per_answer)


def _medians(found: Sequence[Shared]) -> Shared:
    """Errors, which none should be, are added up."""
    values = {each.name: median(getattr(shared, each.name) for shared in found) for each in fields(Shared)}
    return Shared(
        **values | {"num_workers": found[0].num_workers, "num_errors": sum(each.num_errors for each in found)}
    )


def _by_process(rig: Rig) -> Mapping[int, float]:
    """Seconds of CPU of each process of the router alone, its children not included."""
    total = {pid: cpu_s(pid) for pid in dict.fromkeys(process_tree(rig.router.pid))}
    root = rig.router.pid
    return total | {root: total[root] - sum(spent for pid, spent in total.items() if pid != root)}
