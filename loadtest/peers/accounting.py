"""What processes use, by the kernel's count. Knows /proc; knows nothing of routers.

CPU time is each thread's time on a core in nanoseconds (schedstat), not the clock ticks of getrusage.
"""

import os
import resource
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")


def process_tree(pid: int) -> Iterator[int]:
    """A process and those that it and its children started. Nothing for one that is gone."""
    yield pid
    for thread in _threads(pid):
        for child in _read(thread / "children").split():
            yield from process_tree(int(child))


def cpu_s(pid: int) -> float:
    """Seconds that the threads of a process tree have been on a core. Threads that have ended are not in it."""
    threads = (thread for process in process_tree(pid) for thread in _threads(process))
    return sum(int((_read(thread / "schedstat").split() or ["0"])[0]) for thread in threads) / 1e9


def rss_mb(pid: int) -> float:
    """Resident memory of a process tree in MB (2**20 bytes); shared pages count in each process."""
    return sum(map(process_rss_mb, process_tree(pid)))


def process_rss_mb(pid: int) -> float:
    """Of one process alone."""
    lines = _read(_PROC / str(pid) / "status").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def busy_s() -> float:
    """Seconds that all cores of the machine have been busy since it started."""
    user, nice, system, _, _, *interrupts = map(int, _read(_PROC / "stat").partition("\n")[0].split()[1:9])
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


def own_s() -> float:
    """CPU seconds of this process and of its children that have ended and been waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(os.times()[:2]) + children.ru_utime + children.ru_stime


def _threads(pid: int) -> list[Path]:
    try:
        return list((_PROC / str(pid) / "task").iterdir())
    except OSError:
        return []


def _read(file: Path) -> str:
    """Empty where the process has just gone."""
    try:
        return file.read_text()
    except OSError:
        return ""
