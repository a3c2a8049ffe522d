from itertools import pairwise

from router.routing.scorers.requests import Requests
from tests.router.nouns import make_candidate, make_demand


def test_more_requests_are_always_a_smaller_share() -> None:
    shares = Requests().score(make_demand(), [make_candidate(str(n), in_flight=n) for n in range(2000)])
    assert shares[0] == 1.0
    assert all(fewer > more > 0.0 for fewer, more in pairwise(shares))


def test_equal_counts_are_equal_shares() -> None:
    shares = Requests().score(make_demand(), [make_candidate("a", in_flight=7), make_candidate("b", in_flight=7)])
    assert shares[0] == shares[1]
