import random

from router.core import Pool, ReplicaState
from router.replicas.member import Member
from router.replicas.roster import Roster
from tests.router.replicas.fakes import make_member

POOL = Pool("m")


def make_roster(*members: Member) -> Roster:
    for member in members:
        member.replica.pool = POOL
    roster = Roster()
    roster.rebuild(members)
    return roster


def test_only_ready_replicas_are_available() -> None:
    members = [make_member(state.value, state=state) for state in ReplicaState]
    roster = make_roster(*members)
    assert [replica.id for replica in roster.available(POOL, 0.0)] == ["ready"]
    assert [replica.id for replica in roster.ready(POOL, 0.0)] == ["ready"]


def test_a_cooling_replica_is_ready_but_not_available_until_it_has_cooled() -> None:
    member = make_member()
    roster = make_roster(member)
    member.breaker.push_back(10.0, is_trial=False, retry_after_s=5.0)
    roster.update(member)
    assert list(roster.available(POOL, 10.0)) == []
    assert list(roster.ready(POOL, 10.0)) == [member.replica]
    assert list(roster.available(POOL, 15.0)) == [member.replica]


def test_the_answer_is_kept_while_nothing_changes() -> None:
    """Pitfall: work over the whole fleet for each request."""
    roster = make_roster(*(make_member(f"r{i}") for i in range(100)))
    assert roster.available(POOL, 1.0) is roster.available(POOL, 2.0)


def test_an_unknown_pool_has_nobody() -> None:
    assert list(make_roster(make_member()).available(Pool("m"), 0.0)) == []


def test_the_kept_answer_is_always_the_right_one() -> None:
    """Random events: the kept views equal a rescan of all members at any time."""
    dice = random.Random(3)
    members = [make_member(f"r{i}", open_s=2.0, cooldown_s=1.0) for i in range(6)]
    roster = make_roster(*members)
    now = 0.0
    for _ in range(5_000):
        now += dice.random()
        member = dice.choice(members)
        event = dice.choice(["state", "fail", "push_back", "send", "none"])
        if event == "state":
            member.replica.state = dice.choice(list(ReplicaState))
        elif event == "fail":
            member.breaker.fail(now, member.breaker.has_trial)
        elif event == "push_back":
            member.breaker.push_back(now, member.breaker.has_trial)
        elif event == "send":
            member.breaker.send(now)
        if event != "none":
            roster.update(member)
        ready = [each for each in members if each.replica.state is ReplicaState.READY]
        assert list(roster.ready(POOL, now)) == [each.replica for each in ready]
        assert list(roster.available(POOL, now)) == [each.replica for each in ready if each.breaker.admits(now)]
