from router.admission.pace import Pace


def test_nothing_is_known_before_the_first_place() -> None:
    pace = Pace()
    pace.began(10.0)
    assert pace.seconds_for(5, now=20.0) is None


def test_a_steady_pace_is_learned() -> None:
    pace = Pace()
    pace.began(0.0)
    for now in range(2, 100, 2):
        pace.gave(float(now))
    assert pace.seconds_for(10, now=98.0) == 20.0


def test_the_pace_follows_a_change() -> None:
    pace = Pace()
    pace.began(0.0)
    pace.gave(100.0)
    for step in range(60):
        pace.gave(101.0 + step)
    found = pace.seconds_for(1, now=160.0)
    assert found is not None
    assert 1.0 <= found < 1.5


def test_idle_time_between_lines_does_not_count() -> None:
    pace = Pace()
    pace.began(0.0)
    pace.gave(1.0)
    pace.began(1000.0)
    pace.gave(1001.0)
    assert pace.seconds_for(1, now=1001.0) == 1.0


def test_a_line_at_a_standstill_is_as_slow_as_it_stands_long() -> None:
    pace = Pace()
    pace.began(0.0)
    pace.gave(1.0)
    assert pace.seconds_for(2, now=31.0) == 60.0
