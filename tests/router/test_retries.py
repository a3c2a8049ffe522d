from random import Random

from router.retries import RetryBudget


def test_a_quiet_router_can_retry_at_once() -> None:
    budget = RetryBudget(ratio=0.2)
    assert budget.spend()


def test_a_spent_budget_refuses() -> None:
    budget = RetryBudget(ratio=0.2, saved=2.0)
    assert [budget.spend() for _ in range(4)] == [True, True, False, False]


def test_requests_earn_a_share_of_a_retry_each() -> None:
    budget = RetryBudget(ratio=0.25, saved=0.0)
    given = []
    for _ in range(8):
        budget.earn()
        given.append(budget.spend())
    assert given == [False, False, False, True] * 2


def test_a_budget_of_nothing_allows_nothing() -> None:
    budget = RetryBudget(ratio=0.0, saved=0.0)
    for _ in range(1000):
        budget.earn()
    assert not budget.spend()


def test_a_long_quiet_time_saves_no_storm_of_retries() -> None:
    """Where every request of a fleet in trouble were tried again, it would get twice its load at the worst moment."""
    budget = RetryBudget(ratio=0.2)
    for _ in range(100_000):
        budget.earn()
    num_given = 0
    while budget.spend():
        num_given += 1
    assert num_given == 50


def test_retries_never_exceed_their_share_of_requests_and_the_start() -> None:
    random = Random(5)
    budget = RetryBudget(ratio=0.2, saved=10.0)
    num_requests = num_retries = 0
    for _ in range(20_000):
        if random.random() < 0.5:
            budget.earn()
            num_requests += 1
        elif budget.spend():
            num_retries += 1
        assert num_retries <= 10 + 0.2 * num_requests + 1e-6
        assert budget.saved >= 0.0
    assert num_retries > 0.19 * num_requests
