"""Whose place a request of the highest band may take."""

from router.admission.displacing import Displaceable
from router.core import Band, Decision, Lease, Outcome, Standing
from tests.router.nouns import make_demand, make_replica


def lease(id: str, band: Band, given: list[str], replica: str = "a", num_displaced: int = 0) -> Lease:
    demand = make_demand(id, standing=Standing(band=band))
    demand = type(demand)(demand.request, demand.pool, demand.prompt, None, frozenset(), demand.standing, num_displaced)
    decision = Decision(make_replica(replica), "p", 0, 1, 0.0, {})
    made = Lease(demand, decision, 0.0, lambda _: None, lambda _: None)
    made.on_displaced = lambda: given.append(id)
    return made


HIGH = make_demand("high", standing=Standing(band=Band.HIGH))


def test_the_newest_of_the_lowest_band_gives_way_once() -> None:
    given: list[str] = []
    leases = Displaceable()
    for id, band in (("low", Band.LOW), ("bulk1", Band.BULK), ("bulk2", Band.BULK), ("normal", Band.NORMAL)):
        leases.add(lease(id, band, given))
    assert [leases.displace_for(HIGH) for _ in range(4)] == [True, True, True, False]
    assert given == ["bulk2", "bulk1", "low"]


def test_who_began_to_answer_who_ended_and_who_gave_way_before_stay() -> None:
    given: list[str] = []
    leases = Displaceable()
    begun, ended = lease("begun", Band.BULK, given), lease("ended", Band.BULK, given)
    leases.add(begun)
    leases.add(ended)
    leases.add(lease("again", Band.BULK, given, num_displaced=1))
    begun.start()
    ended.release(Outcome.OK)
    assert not leases.displace_for(HIGH)


def test_only_a_replica_that_can_serve_the_demand_is_freed_and_only_for_the_highest_band() -> None:
    given: list[str] = []
    leases = Displaceable()
    leases.add(lease("bulk", Band.BULK, given, replica="a"))
    tried = make_demand("high", standing=Standing(band=Band.HIGH), tried=frozenset({"a"}))
    adapter = make_demand("high", standing=Standing(band=Band.HIGH), adapter="x")
    normal = make_demand("normal", standing=Standing(band=Band.NORMAL))
    assert not any(leases.displace_for(demand) for demand in (tried, adapter, normal))


def test_ended_leases_do_not_pile_up() -> None:
    leases = Displaceable()
    for number in range(10_000):
        made = lease(str(number), Band.BULK, [])
        leases.add(made)
        made.release(Outcome.OK)
    assert len(leases._leases) < 200
