import re
import subprocess
import sys

import pytest

from loadtest.endure.__main__ import main
from loadtest.endure.idle import Idle
from loadtest.endure.processes import Shared, speedup
from loadtest.endure.soak import Soak
from loadtest.endure.sockets import Sockets


def test_a_stream_costs_what_the_router_grew_by() -> None:
    assert Idle(1024, before_mb=60.0, open_mb=72.0, after_mb=70.0, num_left=0).kb_each == 12.0


def test_the_slope_is_that_of_the_second_half() -> None:
    growing_then_flat = [(float(at), 100.0 + min(at, 50)) for at in range(0, 105, 5)]
    assert Soak(looks=growing_then_flat).mb_per_hour == pytest.approx(0.0, abs=1e-9)
    steady = [(float(at), 100.0 + at / 3600) for at in range(0, 100, 5)]
    assert Soak(looks=steady).mb_per_hour == pytest.approx(1.0)
    assert Soak(looks=[(0.0, 100.0)]).mb_per_hour == 0.0


def test_more_workers_serve_until_the_busiest_has_no_time_left() -> None:
    one = Shared(1, 100, 0, cpu_us_all=90.0, cpu_us_busiest=90.0)
    assert speedup(one, Shared(2, 100, 0, cpu_us_all=100.0, cpu_us_busiest=50.0)) == 1.8


@pytest.mark.parametrize("argv", [[], ["idle", "--streams", "0"], ["soak", "--seconds", "x"], ["dance"]])
def test_a_wrong_flag_is_wrong_usage(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_more_sockets_than_descriptors_are_refused_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sockets", "--sockets", "1000000000"]) != 0
    assert "--sockets: 1000000000 need so many descriptors" in capsys.readouterr().err


def test_more_streams_than_descriptors_are_refused_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["idle", "--streams", "1000000000"]) != 0
    assert "--streams: 1000000000 need 2000000" in capsys.readouterr().err


def test_a_socket_costs_what_the_router_grew_by() -> None:
    found = Sockets(1024, before_mb=60.0, open_mb=70.0, talked_mb=75.0, after_mb=64.0, num_left=0)
    assert (found.kb_each, found.kb_each_talked) == (10.0, 15.0)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts by /proc")
def test_idle_streams_are_opened_measured_and_leave_nothing_behind() -> None:
    command = [sys.executable, "-m", "loadtest.endure", "idle", "--streams", "200"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"^200 idle streams: -?[0-9.]+ KB each$", ended.stdout, re.MULTILINE)
    assert "still counted as in flight: 0" in ended.stdout


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts by /proc")
def test_sockets_are_opened_talk_are_measured_and_leave_nothing_behind() -> None:
    command = [sys.executable, "-m", "loadtest.endure", "sockets", "--sockets", "200"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
    each = r"^200 WebSockets: -?[0-9.]+ KB each, -?[0-9.]+ KB with a conversation of one turn$"
    assert re.search(each, ended.stdout, re.MULTILINE)
    assert "descriptors still open: 0" in ended.stdout
