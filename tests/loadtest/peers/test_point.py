import pytest

from loadtest.errors import LoadError
from loadtest.peers.point import parse

LINE = (
    '{"answers":200,"events":0,"requests_per_s":100.5,"events_per_s":0.0,"total_p50_us":17.5,"total_p99_us":20.0,'
    '"first_event_p50_us":null,"first_event_p99_us":null,"event_p50_us":null,"event_p99_us":null,'
    '"refused":0,"cut":2,"bad_status":3,"first_bad_status":503,"undone":0,"unfinished":0}\n'
)


def test_a_line_of_the_generator_becomes_a_point() -> None:
    point = parse(LINE, cpu_us=3000.0, foreign_cpu=0.1)
    assert (point.num_answers, point.requests_per_s, point.total_p50_us) == (200, 100.5, 17.5)
    assert (point.errors, point.first_bad_status) == ({"cut": 2, "bad_status": 3}, 503)
    assert (point.cpu_us_per_request, point.cpu_us_per_event, point.foreign_cpu) == (15.0, None, 0.1)


@pytest.mark.parametrize("printed", ["", "Killed", "[]", "{}", LINE[:40]])
def test_another_line_is_told(printed: str) -> None:
    with pytest.raises(LoadError, match="the load generator printed"):
        parse(printed, 0.0, 0.0)
