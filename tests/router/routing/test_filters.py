import pytest

from router.routing.filters import HasAdapter, HasRoom, NotTried
from tests.router.nouns import make_candidate, make_demand


def test_a_replica_that_failed_the_request_is_out() -> None:
    demand = make_demand(tried=frozenset({"a"}))
    failed, other = make_candidate("a"), make_candidate("b")
    assert NotTried().keep(demand, [failed, other]) == [other]


def test_a_replica_has_room_below_its_limit() -> None:
    rule = HasRoom(max_in_flight=2)
    candidates = [make_candidate(in_flight=count) for count in (0, 1, 2, 3)]
    assert rule.keep(make_demand(), candidates) == candidates[:2]


def test_room_for_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="max_in_flight must be at least 1"):
        HasRoom(max_in_flight=0)


@pytest.mark.parametrize(
    ("adapter", "served", "is_kept"),
    [(None, set(), True), (None, {"x"}, True), ("x", {"x"}, True), ("x", {"y"}, False)],
)
def test_an_adapter_needs_a_replica_that_serves_it(adapter: str | None, served: set[str], is_kept: bool) -> None:
    candidate = make_candidate(adapters=frozenset(served))
    assert list(HasAdapter().keep(make_demand(adapter=adapter), [candidate])) == [candidate] * is_kept
