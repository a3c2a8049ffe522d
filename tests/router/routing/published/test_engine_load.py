import pytest

from router.core import Load
from router.routing.published.engine_load import KvRoom, QueueRoom
from tests.router.nouns import make_candidate, make_demand


def with_load(waiting: int, kv_used_ratio: float) -> Load:
    return Load(0.0, running=1, waiting=waiting, kv_used_ratio=kv_used_ratio)


def test_queues_are_scored_between_the_longest_and_the_shortest() -> None:
    fleet = [make_candidate(load=with_load(waiting, 0.0)) for waiting in (2, 10, 4)]
    assert QueueRoom().score(make_demand(), fleet) == [1.0, 0.0, 0.75]


def test_equal_queues_all_have_room_and_no_report_is_no_queue() -> None:
    assert QueueRoom().score(make_demand(), [make_candidate(load=with_load(5, 0.0))] * 2) == [1.0, 1.0]
    assert QueueRoom().score(make_demand(), [make_candidate(), make_candidate(load=with_load(5, 0.0))]) == [1.0, 0.0]


def test_room_for_kv_is_what_is_not_used() -> None:
    fleet = [make_candidate(load=with_load(0, 0.9)), make_candidate()]
    assert KvRoom().score(make_demand(), fleet) == [pytest.approx(0.1), 1.0]
