import math
import random

from router.replicas.breaker import Breaker, BreakerState


def make_breaker() -> Breaker:
    return Breaker(max_faults=3, open_s=2.0, cooldown_s=1.0, max_cooldown_s=10.0, random=lambda: 0.0)


def make_open_breaker(now: float) -> Breaker:
    breaker = make_breaker()
    for _ in range(3):
        breaker.fail(now, is_trial=False)
    assert repr(breaker) == "<Breaker OPEN 0 faults>"
    return breaker


def test_three_faults_in_a_row_open_it() -> None:
    breaker = make_breaker()
    breaker.fail(0.0, is_trial=False)
    breaker.fail(0.0, is_trial=False)
    assert breaker.admits(0.0)
    breaker.fail(0.0, is_trial=False)
    assert not breaker.admits(0.0)
    assert breaker.admits_later_at(0.0) == 2.0


def test_a_success_between_faults_starts_the_count_again() -> None:
    breaker = make_breaker()
    for is_fault in (True, True, False, True, True):
        if is_fault:
            breaker.fail(0.0, is_trial=False)
        else:
            breaker.succeed(is_trial=False)
    assert repr(breaker) == "<Breaker CLOSED 2 faults>"


def test_back_pressure_cools_down_and_never_opens() -> None:
    """Pitfall: 429 and 503 open the breaker of a replica that only has too much to do."""
    breaker = make_breaker()
    for _ in range(100):
        breaker.push_back(0.0, is_trial=False)
    assert breaker.state is BreakerState.CLOSED
    assert not breaker.admits(0.99)
    assert breaker.admits(1.0)


def test_retry_after_is_honoured_up_to_the_cap() -> None:
    breaker = make_breaker()
    breaker.push_back(0.0, is_trial=False, retry_after_s=4.0)
    assert breaker.admits_later_at(0.0) == 4.0
    breaker.push_back(0.0, is_trial=False, retry_after_s=1.0)
    assert breaker.admits_later_at(0.0) == 4.0, "a shorter wait does not shorten one that was asked for"
    breaker.push_back(0.0, is_trial=False, retry_after_s=86400.0)
    assert breaker.admits_later_at(0.0) == 10.0


def test_half_open_admits_one_trial_at_a_time() -> None:
    """Pitfall: a half-open breaker admits everybody at once."""
    breaker = make_open_breaker(0.0)
    assert breaker.admits(2.0)
    assert breaker.send(2.0)
    assert not breaker.admits(2.0)
    assert not breaker.send(2.0)
    breaker.succeed(is_trial=True)
    assert repr(breaker) == "<Breaker CLOSED 0 faults>"


def test_a_trial_without_a_verdict_makes_room_for_another() -> None:
    """Pitfall: half-open never asks again once a trial was lost."""
    breaker = make_open_breaker(0.0)
    for _ in range(3):
        assert breaker.send(2.0)
        breaker.abandon(is_trial=True)
        assert breaker.admits(2.0)


def test_a_trial_that_is_pushed_back_is_followed_by_another_after_the_cooling() -> None:
    breaker = make_open_breaker(0.0)
    breaker.push_back(2.0, breaker.send(2.0))
    assert not breaker.admits(2.5)
    assert breaker.send(3.0)


def test_a_failed_trial_opens_it_for_another_period() -> None:
    breaker = make_open_breaker(0.0)
    breaker.fail(2.0, breaker.send(2.0))
    assert breaker.state is BreakerState.OPEN
    assert not breaker.admits(3.9)
    assert breaker.admits(4.0)


def test_late_ends_of_older_requests_do_not_move_it() -> None:
    breaker = make_open_breaker(0.0)
    breaker.fail(1.0, is_trial=False)
    assert breaker.admits_later_at(1.0) == 2.0
    is_trial = breaker.send(2.0)
    breaker.fail(2.0, is_trial=False)
    breaker.succeed(is_trial=False)
    assert repr(breaker) == "<Breaker HALF_OPEN 0 faults with a trial out>"
    breaker.succeed(is_trial)
    assert breaker.state is BreakerState.CLOSED


def test_a_replica_back_from_the_dead_gets_its_trial_at_once() -> None:
    breaker = make_open_breaker(0.0)
    breaker.push_back(0.0, is_trial=False, retry_after_s=9.0)
    breaker.recover()
    assert breaker.admits(0.1)
    assert breaker.send(0.1)


def test_open_periods_are_spread_by_the_given_chance() -> None:
    breaker = Breaker(max_faults=1, open_s=2.0, random=lambda: 1.0)
    breaker.fail(0.0, is_trial=False)
    assert breaker.admits_later_at(0.0) == 2.5


def test_whatever_happens_it_admits_again() -> None:
    """Random ends of random requests: at most one trial is out, and once all have ended, time alone is enough."""
    dice = random.Random(1)
    breaker = make_breaker()
    now = 0.0
    open_trials: list[bool] = []
    for _ in range(10_000):
        now += dice.random()
        if breaker.admits(now) and dice.random() < 0.6:
            open_trials.append(breaker.send(now))
        elif open_trials:
            is_trial = open_trials.pop(dice.randrange(len(open_trials)))
            end = dice.choice(["succeed", "fail", "fail", "push_back", "abandon"])
            if end in ("fail", "push_back"):
                getattr(breaker, end)(now, is_trial)
            else:
                getattr(breaker, end)(is_trial)
        assert sum(open_trials) == breaker.has_trial
        if not breaker.has_trial:
            later = breaker.admits_later_at(now)
            assert breaker.admits(now if later == math.inf else later)


def test_what_another_process_heard_cools_and_never_warms() -> None:
    breaker = make_breaker()
    breaker.cool(5.0)
    breaker.cool(3.0)
    assert (breaker.admits(4.0), breaker.admits(5.0)) == (False, True)
    assert breaker.state is BreakerState.CLOSED
