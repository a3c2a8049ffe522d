import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from loadtest.peers.accounting import busy_s, cpu_s, own_s, process_tree, rss_mb

# Each burns a tenth of a second; the child then says so, and both wait for the end of input.
CHILD = "import sys, time\nwhile time.process_time() < 0.1: pass\nprint('done', flush=True)\nsys.stdin.read()\n"
PARENT = f"""
import subprocess, sys, time
while time.process_time() < 0.1: pass
subprocess.run([sys.executable, "-c", {CHILD!r}])
"""


@contextmanager
def burner() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        yield process
    finally:
        process.communicate()


def test_cpu_time_is_that_of_the_whole_tree() -> None:
    with burner() as process:
        assert len(list(process_tree(process.pid))) == 2
        assert cpu_s(process.pid) >= 0.19


def test_cpu_time_only_grows() -> None:
    with burner() as process:
        before = cpu_s(process.pid)
        assert cpu_s(process.pid) >= before


def test_memory_is_that_of_the_whole_tree() -> None:
    with burner() as process:
        child = list(process_tree(process.pid))[1]
        assert rss_mb(process.pid) > rss_mb(child) > 1


def test_a_process_that_is_gone_counts_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert (cpu_s(process.pid), rss_mb(process.pid)) == (0, 0)


def test_children_waited_for_count_as_our_own() -> None:
    before = own_s()
    with burner():
        pass
    assert own_s() - before >= 0.15


def test_the_machine_has_been_busy_at_least_as_long_as_we() -> None:
    before, spent = busy_s(), time.process_time()
    while time.process_time() - spent < 0.05:
        pass
    assert busy_s() - before >= 0.01
    assert cpu_s(os.getpid()) >= 0.05
