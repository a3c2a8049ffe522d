from datetime import UTC, datetime

import pytest

from router.admission.meters import DAY, MONTH, duration, period_of, seconds_left


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0ms"), (0.12, "120ms"), (1.0, "1s"), (59.2, "1m0s"), (360.0, "6m0s"), (3661.0, "1h1m1s")],
)
def test_durations_read_as_openai_writes_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("moment", "day", "month"),
    [
        (datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC), 1, 1),
        (datetime(2028, 2, 28, tzinfo=UTC), 86400, 2 * 86400),
        (datetime(2026, 1, 1, 12, tzinfo=UTC), 43200, 30 * 86400 + 43200),
    ],
)
def test_what_is_left_of_a_day_and_a_month(moment: datetime, day: int, month: int) -> None:
    unix_s = moment.timestamp()
    assert (seconds_left(unix_s, DAY), seconds_left(unix_s, MONTH)) == (day, month)
    assert period_of(unix_s, DAY) != period_of(unix_s + day, DAY)
    assert period_of(unix_s + month - 1, MONTH) != period_of(unix_s + month, MONTH)
