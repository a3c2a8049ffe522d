import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loadtest.peers.process import Cores, Unavailable, free_port, free_ports, last_line, run, running, wait_until


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_for_line(log: Path) -> str | None:
    return None if log.read_text().endswith("\n") else "nothing printed yet"


STUBBORN = """
import signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""


def test_a_program_is_gone_with_its_children_when_its_time_is_over(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running(python(STUBBORN), log, os.environ) as program:
        wait_until(lambda: wait_for_line(log), program, 30)
        child = int(log.read_text())
        assert is_there(program.pid)
        assert is_there(child)
    assert not is_there(program.pid)
    deadline = time.monotonic() + 30
    while state_of(child) not in ("", "Z"):  # its signal was sent; it takes it when it next runs
        assert time.monotonic() < deadline
        time.sleep(0.01)


def state_of(pid: int) -> str:
    """Empty once it is gone; Z while its new parent has not noticed that it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def test_it_is_gone_after_an_error_as_well(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), running(python("input()"), tmp_path / "log", os.environ) as program:
        raise KeyboardInterrupt
    assert not is_there(program.pid)


def test_a_program_that_ends_says_why(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = "import sys; print('address in use'); sys.exit(3)"
    with (
        running(python(code), log, os.environ) as program,
        pytest.raises(Unavailable, match="ended with exit code 3: address in use"),
    ):
        wait_until(lambda: "never", program, 30)


def test_a_program_that_is_never_ready_is_told(tmp_path: Path) -> None:
    with (
        running(python("input()"), tmp_path / "log", os.environ, subprocess.PIPE) as program,
        pytest.raises(Unavailable, match=r"not ready after 0 s \(status 503\): it printed nothing"),
    ):
        wait_until(lambda: "status 503", program, 0)


def test_a_program_that_is_not_there_is_told(tmp_path: Path) -> None:
    with (
        pytest.raises(Unavailable, match="cannot be started"),
        running(["/nosuch/program"], tmp_path / "log", os.environ),
    ):
        pass
    with pytest.raises(Unavailable, match="cannot be started"):
        run(["/nosuch/program"], 1)


def test_what_a_command_printed_comes_with_its_exit_code() -> None:
    assert run(python("import sys; print('out'); sys.stdout.flush(); sys.exit('err')"), 30) == (1, "out\nerr\n")


def test_a_command_that_takes_too_long_is_stopped() -> None:
    with pytest.raises(Unavailable, match=r"not done after 0\.2 s"):
        run(python("import time; time.sleep(60)"), 0.2)


def test_free_ports_differ() -> None:
    assert len(set(free_ports(50))) == 50


def test_a_free_port_can_be_listened_on() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port()))


def test_a_command_gets_its_core() -> None:
    assert Cores(2, 5, is_first=False).on(5, ["nginx"]) == ["taskset", "-c", "5", "nginx"]
    assert Cores(2, 5, is_first=True).on(2, ["nginx"]) == ["chrt", "-f", "5", "taskset", "-c", "2", "nginx"]


def test_the_last_line_that_says_something() -> None:
    assert last_line("one\n two \n\n") == "two"
    assert last_line("") == ""
