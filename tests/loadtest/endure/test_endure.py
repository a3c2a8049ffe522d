import re
import subprocess
import sys

import pytest

from loadtest.endure.__main__ import main
from loadtest.endure.idle import Idle
from loadtest.endure.processes import Shared, _medians, speedup, speedup_evenly
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
    two = Shared(2, 100, 0, cpu_us_all=90.0, cpu_us_busiest=50.0)
    assert speedup(one, two) == 1.8
    assert speedup_evenly(one, two) == 2.0


def test_of_several_rounds_the_medians_stand_and_every_error_counts() -> None:
    rounds = [Shared(2, answers, 1, cpu_us_all=answers, cpu_us_busiest=1.0) for answers in (10, 30, 500)]
    assert _medians(rounds) == Shared(2, 30, 3, cpu_us_all=30.0, cpu_us_busiest=1.0)


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
    printed = _endure("idle", "--streams", "200")
    assert re.search(r"^200 idle streams: -?[0-9.]+ KB each$", printed, re.MULTILINE)
    assert "still counted as in flight: 0" in printed


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts by /proc")
def test_sockets_are_opened_talk_are_measured_and_leave_nothing_behind() -> None:
    printed = _endure("sockets", "--sockets", "200")
    each = r"^200 WebSockets: -?[0-9.]+ KB each, -?[0-9.]+ KB with a conversation of one turn$"
    assert re.search(each, printed, re.MULTILINE)
    assert "descriptors still open: 0" in printed


def _endure(*words: str) -> str:
    """What it prints; it must find no fault."""
    command = [sys.executable, "-m", "loadtest.endure", *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts by /proc")
def test_a_soak_with_clients_that_leave_cuts_nothing_and_leaves_nothing_in_flight() -> None:
    """Pitfall: memory grows for days. How flat it is, a longer one shows."""
    printed = _endure("soak", "--seconds", "12", "--clients", "16", "--rate", "60")
    assert re.search(r"^resident MB: [0-9.]+ at 0 s", printed, re.MULTILINE)
    ended = re.search(r"^(\d+) answered, (\d+) left by their clients, 0 cut$", printed, re.MULTILINE)
    assert ended, printed
    assert int(ended[1]) > 0
    assert int(ended[2]) > 0
    assert "still counted as in flight: 0" in printed


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts by /proc")
def test_workers_are_measured_by_turns_and_a_router_before_it_served() -> None:
    printed = _endure("workers", "--seconds", "1", "--rounds", "1")
    assert re.search(r"^2 workers: [0-9.]+ µs of CPU a request", printed, re.MULTILINE)
    assert re.search(r"^2 workers serve [0-9.]+ times as many as one", printed, re.MULTILINE)
    printed = _endure("memory")
    assert re.search(r"^without a tokenizer: \d+ MB, \d+ with its Redis$", printed, re.MULTILINE)
    assert re.search(r"^with a tokenizer: \d+ MB, \d+ with its Redis$", printed, re.MULTILINE)
