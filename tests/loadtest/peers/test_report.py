import json

import pytest
from rich.console import Console

from loadtest.peers.launch import FEATURES, OURS, Row
from loadtest.peers.process import Cores
from loadtest.peers.report import bars, exit_code, print_json, print_table
from loadtest.peers.run import Measured
from tests.loadtest.peers.points import point, visit

NGINX, SMG = Row("nginx", "nginx"), Row("smg", "smg")
DIRECT = visit(single=point(total_us=20.0), ttft=point(first_us=40.0)).points


def measured(*rows: Row, is_first: bool = True) -> Measured:
    found = Measured(rows, Cores(0, 1, is_first), directs=[DIRECT])
    for number, row in enumerate(rows, 1):
        found.visits[row] = [visit({"500b": 0.94} if row.is_ours else {}, p500b=point(cpu_us=1000.0 * number))]
    return found


def shown(found: Measured) -> str:
    console = Console(width=140, record=True, quiet=True)
    console.quiet = False
    with console.capture() as capture:
        print_table(found, console)
    return capture.get()


def test_the_table_gives_costs_and_their_ratios_to_nginx() -> None:
    text = shown(measured(NGINX, OURS[0]))
    assert "20.0 (2.00x)" in text
    assert "94 %" in text
    assert "real time (SCHED_FIFO)" in text


def test_a_row_with_errors_is_marked_and_explained() -> None:
    found = measured(NGINX, SMG)
    found.visits[SMG] = [visit(p500b=point(errors={"bad_status": 7}, status=503))]
    text = shown(found)
    assert "7 !" in text
    assert "smg: errors, so its figures are not to be compared: 7 bad status (first: 503)" in text


def test_a_row_that_was_not_measured_is_there_and_says_why() -> None:
    found = measured(NGINX, SMG)
    del found.visits[SMG]
    found.failures[SMG] = "cannot be installed: no network"
    text = shown(found)
    assert "smg: cannot be installed: no network" in text
    assert "│ smg " in text


def test_what_could_blur_the_figures_is_said() -> None:
    found = measured(NGINX, is_first=False)
    found.visits[NGINX] = [visit(p500b=point(foreign_cpu=0.5), p8k=point(foreign_cpu=0.5), p64k=point(foreign_cpu=0.5),
                                 single=point(foreign_cpu=0.5))]  # fmt: skip
    text = shown(found)
    assert "ordinary priority" in text
    assert "Other programs used 0.50 to 0.50 cores" in text


def test_features_are_shown_by_what_they_save() -> None:
    found = measured(NGINX, FEATURES[0], OURS[0])
    found.rows = (NGINX, OURS[0], FEATURES[0])
    assert "+10.0" in shown(found)


def test_json_alone_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    print_json(measured(NGINX, OURS[0]))
    printed = capsys.readouterr()
    assert json.loads(printed.out)["pointsman"]["cpu_us_500b"] == 20.0
    assert "Router on core 0" in printed.err


def test_bars_are_sorted_and_the_dearest_is_the_longest() -> None:
    lines = bars({"slow": 1000.0, "none": None, "fast": 10.0, "middle": 100.0})
    assert [line.split()[0] for line in lines] == ["fast", "middle", "slow"]
    lengths = [line.count("█") for line in lines]
    assert lengths == sorted(lengths)
    assert lengths[2] - lengths[1] == pytest.approx(lengths[1] - lengths[0], abs=1)
    assert bars({"none": None}) == []


def test_the_exit_code_tells_whether_our_own_rows_are_good() -> None:
    assert exit_code(measured(NGINX, OURS[0])) == 0
    broken = measured(NGINX, OURS[0])
    broken.failures[OURS[0]] = "ended with exit code 1"
    assert exit_code(broken) == 1
    peer_broken = measured(NGINX, SMG)
    peer_broken.failures[SMG] = "ended with exit code 1"
    assert exit_code(peer_broken) == 0
    nothing = measured()
    assert exit_code(nothing) == 1
    interrupted = measured(NGINX)
    interrupted.is_interrupted = True
    assert exit_code(interrupted) == 130
