import json

import pytest

from loadtest.peers.launch import OURS, Row
from loadtest.peers.results import Figures, as_json, figures_of, ratios
from tests.loadtest.peers.points import point, visit

NGINX = Row("nginx", "nginx")
POINTS = ("500b", "8k", "64k", "single", "ttft", "events", "in_step")
DIRECT = {name: point(total_us=20.0, first_us=40.0) for name in POINTS}


def test_figures_are_medians_over_the_rounds() -> None:
    visits = [visit(p500b=point(cpu_us=cost * 100)) for cost in (30.0, 10.0, 20.0)]
    assert figures_of(visits, [DIRECT], None).cpu_us_500b == 20.0
    assert figures_of(visits[:2], [DIRECT], None).cpu_us_500b == 20.0


def test_cpu_time_is_per_request_and_per_event() -> None:
    seen = visit(p8k=point(cpu_us=500, num_answers=10), events=point(cpu_us=500, num_answers=2, num_events=100))
    figures = figures_of([seen], [DIRECT], None)
    assert (figures.cpu_us_8k, figures.cpu_us_event) == (50.0, 5.0)


def test_nothing_answered_is_not_free() -> None:
    assert figures_of([visit(p500b=point(num_answers=0))], [DIRECT], None).cpu_us_500b is None


def test_added_times_are_less_those_without_a_router() -> None:
    seen = visit(single=point(total_us=65.0), ttft=point(first_us=140.0))
    figures = figures_of([seen], [DIRECT], None)
    assert (figures.latency_added_us, figures.ttft_added_us) == (45.0, 100.0)
    assert figures_of([visit(ttft=point(first_us=None))], [DIRECT], None).ttft_added_us is None


def test_errors_of_all_rounds_and_points_add_up() -> None:
    one = visit(p500b=point(errors={"cut": 1}), p8k=point(errors={"cut": 2, "bad_status": 3}, status=503))
    figures = figures_of([one, visit(events=point(errors={"undone": 4}))], [DIRECT], None)
    assert figures.errors == {"cut": 3, "bad_status": 3, "undone": 4}
    assert (figures.num_errors, figures.bad_status) == (10, 503)


def test_a_router_that_was_never_measured_says_why() -> None:
    assert figures_of([], [], "no such program") == Figures(failure="no such program")
    assert figures_of([], [], None).failure == "not measured"


def test_a_router_that_fell_in_the_second_round_keeps_its_first() -> None:
    figures = figures_of([visit()], [DIRECT, DIRECT], "ended with exit code 1")
    assert (figures.num_rounds, figures.failure, figures.cpu_us_500b) == (1, "ended with exit code 1", 10.0)


def test_ratios_leave_out_what_either_lacks() -> None:
    ours, theirs = Figures(cpu_us_500b=30.0, cpu_us_8k=8.0), Figures(cpu_us_500b=15.0, cpu_us_64k=9.0)
    assert ratios(ours, theirs) == {"cpu_us_500b": 2.0}
    assert ratios(ours, None) == {}


def test_json_is_keyed_by_row_with_the_promised_names() -> None:
    table = {
        NGINX: figures_of([visit(p500b=point(cpu_us=1500))], [DIRECT], None),
        OURS[0]: figures_of([visit({"8k": 0.98}, 90.0, p500b=point(cpu_us=3000))], [DIRECT], None),
        Row("smg", "smg"): figures_of([], [DIRECT], "cannot be installed: no network"),
    }
    shown = json.loads(json.dumps(as_json(table)))
    assert list(shown) == ["nginx", "pointsman", "smg"]
    for row in shown.values():
        promised = "cpu_us_500b cpu_us_8k cpu_us_64k cpu_us_event rps_500b ttft_added_us rss_mb"
        assert set(promised.split()) <= row.keys()
    assert shown["pointsman"]["times_nginx"]["cpu_us_500b"] == 2.0
    assert shown["pointsman"]["hit_share"] == {"8k": 0.98}
    assert (shown["pointsman"]["rss_mb"], shown["smg"]["rss_mb"]) == (90.0, None)
    assert shown["smg"]["failure"] == "cannot be installed: no network"


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_the_same_router_twice_has_ratios_of_one(rounds: int) -> None:
    visits = [visit(p500b=point(cpu_us=1000.0 + 100 * number)) for number in range(rounds)]
    figures = figures_of(visits, [DIRECT] * rounds, None)
    assert all(ratio == 1.0 for ratio in ratios(figures, figures).values())
