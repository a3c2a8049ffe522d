from pathlib import Path

from loadtest.peers.launch import OURS, Row
from loadtest.peers.picture import draw
from loadtest.peers.results import Figures, figures_of
from tests.loadtest.peers.points import point, visit

DIRECT = visit(single=point(total_us=20.0), ttft=point(first_us=40.0)).points


def test_a_picture_of_measured_failed_and_faulty_rows(tmp_path: Path) -> None:
    table = {
        Row("nginx", "nginx"): figures_of([visit(p500b=point(cpu_us=1500))], [DIRECT], None),
        OURS[0]: figures_of([visit(p500b=point(cpu_us=3000, errors={"cut": 1}))], [DIRECT], None),
        Row("smg", "smg"): Figures(failure="cannot be installed"),
    }
    draw(tmp_path / "a.png", table)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_of_nothing(tmp_path: Path) -> None:
    draw(tmp_path / "a.png", {Row("smg", "smg"): Figures(failure="cannot be installed")})
    assert (tmp_path / "a.png").exists()
