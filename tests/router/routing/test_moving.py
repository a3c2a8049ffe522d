import pytest

from router.routing.moving import BASE_S, FORGET_S, MAX_RATIO, Moving


def test_until_it_is_learned_the_setting_counts() -> None:
    moving = Moving(0.001)
    assert moving.expected_s("d", 500, 0.0) == pytest.approx(0.5 + BASE_S)
    assert repr(moving) == "<Moving as set>"


def test_what_is_seen_is_learned_for_each_replica_alone() -> None:
    moving = Moving(0.001)
    for now in range(60):
        moving.learn("d", 1000, 0.2 + BASE_S, float(now) / 10)
    assert moving.expected_s("d", 1000, 6.0) == pytest.approx(0.2 + BASE_S, rel=0.01)
    assert moving.expected_s("other", 1000, 6.0) == pytest.approx(1.0 + BASE_S)
    assert repr(moving) == "<Moving d 5000 tokens/s>"


def test_one_wild_sample_moves_it_little_and_small_ones_not_at_all() -> None:
    moving = Moving(0.001)
    moving.learn("d", 1000, 3600.0, 0.0)
    assert moving.expected_s("d", 1000, 0.0) < 1.0 + 0.2 * MAX_RATIO
    moving = Moving(0.001)
    moving.learn("d", 10, 3600.0, 0.0)
    assert moving.expected_s("d", 1000, 0.0) == pytest.approx(1.0 + BASE_S)
    moving.learn("d", 1000, -1.0, 0.0)
    assert moving.expected_s("d", 1000, 0.0) > 0.0


def test_what_was_slow_once_is_tried_again() -> None:
    moving = Moving(0.001)
    for _ in range(60):
        moving.learn("d", 1000, 100.0, 0.0)
    assert moving.expected_s("d", 1000, FORGET_S - 1.0) > 50.0
    assert moving.expected_s("d", 1000, FORGET_S) == pytest.approx(1.0 + BASE_S)


def test_a_token_takes_some_time() -> None:
    with pytest.raises(ValueError, match="some time"):
        Moving(0.0)
