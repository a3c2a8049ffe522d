from router.core import ReplicaState
from router.replicas.health import STRIKES_TO_LOSE
from router.replicas.sighting import sight
from tests.router.replicas.fakes import make_identity, make_member


def test_a_sighting_is_all_that_is_known() -> None:
    member = make_member("a", make_identity("m", block_size=32))
    member.breaker.cool(7.0)
    member.lose(now=3.0)
    seen = sight(member, column=4)
    assert (seen.id, seen.column, seen.state, seen.lost_at, seen.cooling_until) == (
        "a",
        4,
        ReplicaState.READY,
        3.0,
        7.0,
    )
    assert seen.identity == make_identity("m", block_size=32)


def test_others_hear_how_far_away_it_is() -> None:
    member, other = make_member("a"), make_member("a")
    assert sight(member, None).round_trip_s is None
    member.distance.learn(0.0305, member.replica)
    other.distance.adopt(sight(member, None).round_trip_s, other.replica)
    assert (other.distance.round_trip_s, other.replica.round_trip_s) == (0.0305, 0.03)
    member.distance.learn(0.0105, member.replica)
    other.distance.adopt(sight(member, None).round_trip_s, other.replica)
    assert other.replica.round_trip_s == member.replica.round_trip_s == 0.01


def test_one_that_nobody_has_probed_is_not_settled() -> None:
    member = make_member(state=ReplicaState.STARTING)
    assert not sight(member, None).is_settled
    member.health.num_strikes = STRIKES_TO_LOSE
    assert sight(member, None).is_settled, "probes have said that it is not there"
