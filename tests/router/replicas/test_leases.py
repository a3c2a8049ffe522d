import asyncio
import random

import pytest

from router.core import Lease, Outcome
from router.errors import (
    ConnectFailed,
    ConnectionCut,
    Expired,
    PointsmanError,
    UpstreamStatus,
    UpstreamTimeout,
)
from router.replicas.breaker import BreakerState
from router.replicas.leases import Share, Verdict, judge, take
from router.replicas.member import Member
from tests.router.nouns import FakeClock, make_demand
from tests.router.replicas.fakes import make_decision, make_member


def lease_on(member: Member, clock: FakeClock, tokens: int = 100, heard: list[Verdict] | None = None) -> Lease:
    def hear(_: Share, verdict: Verdict) -> None:
        if heard is not None:
            heard.append(verdict)

    return take(make_demand(is_stream=True), make_decision(member.replica, tokens), member, clock, hear)


def counts(member: Member) -> tuple[int, int, int]:
    return member.replica.in_flight, member.replica.prefilling, member.replica.prefilling_tokens


def test_a_lease_counts_from_the_choice_until_its_end() -> None:
    """Pitfall: load is released when headers arrive. The replica is busy until the body ends."""
    member, clock = make_member(), FakeClock(7.0)
    lease = lease_on(member, clock, 100)
    assert counts(member) == (1, 1, 100)
    assert member.replica.last_used == 7.0
    lease.start()
    assert counts(member) == (1, 0, 0)
    lease.release(Outcome.OK)
    assert counts(member) == (0, 0, 0)


def test_a_lease_that_never_started_gives_back_its_prefill() -> None:
    member = make_member()
    lease_on(member, FakeClock()).release(Outcome.CLIENT_GONE)
    assert counts(member) == (0, 0, 0)


def test_a_second_release_is_an_error_and_changes_nothing() -> None:
    member = make_member()
    lease, other = lease_on(member, FakeClock()), lease_on(member, FakeClock())
    lease.release(Outcome.OK)
    with pytest.raises(RuntimeError):
        lease.release(Outcome.OK)
    assert counts(member) == (1, 1, 100)
    other.release(Outcome.OK)


@pytest.mark.parametrize(
    ("outcome", "error", "verdict"),
    [
        (Outcome.OK, None, Verdict.SUCCESS),
        (Outcome.UPSTREAM_FAILED, UpstreamStatus(400, b""), Verdict.SUCCESS),
        (Outcome.UPSTREAM_FAILED, UpstreamStatus(404, b""), Verdict.SUCCESS),
        (Outcome.UPSTREAM_FAILED, UpstreamStatus(429, b""), Verdict.BACK_PRESSURE),
        (Outcome.UPSTREAM_FAILED, UpstreamStatus(503, b""), Verdict.BACK_PRESSURE),
        (Outcome.UPSTREAM_FAILED, UpstreamStatus(500, b""), Verdict.FAULT),
        (Outcome.UPSTREAM_FAILED, ConnectFailed("refused"), Verdict.FAULT),
        (Outcome.UPSTREAM_FAILED, UpstreamTimeout("silent"), Verdict.FAULT),
        (Outcome.CUT_MID_STREAM, ConnectionCut("cut"), Verdict.FAULT),
        (Outcome.CLIENT_GONE, None, Verdict.NOTHING),
        (Outcome.CLIENT_GONE, ConnectionCut("cut"), Verdict.NOTHING),
        (Outcome.EXPIRED, Expired("late"), Verdict.NOTHING),
        (Outcome.EXPIRED, UpstreamTimeout("silent"), Verdict.NOTHING),
        (Outcome.UPSTREAM_FAILED, ValueError("our own fault"), Verdict.NOTHING),
    ],
)
def test_only_faults_of_the_replica_are_blamed_on_it(
    outcome: Outcome, error: PointsmanError | ValueError | None, verdict: Verdict
) -> None:
    """Pitfall: 4xx, 429 or 503 open the breaker. 4xx is success, 429 and 503 are back-pressure."""
    assert judge(outcome, error) is verdict


@pytest.mark.parametrize("status", [400, 404, 422, 429, 503])
def test_refusals_never_open_the_breaker(status: int) -> None:
    """Pitfall: 4xx, 429 or 503 open the breaker."""
    member, clock = make_member(), FakeClock()
    for _ in range(20):
        lease_on(member, clock).release(Outcome.UPSTREAM_FAILED, UpstreamStatus(status, b"", retry_after_s=2.0))
    assert member.breaker.state is BreakerState.CLOSED
    assert member.breaker.admits(clock.now) == (status < 429)
    assert member.breaker.admits(clock.now + 2.0)


def test_faults_open_the_breaker_and_a_started_trial_closes_it() -> None:
    member, clock = make_member(open_s=2.0), FakeClock()
    for _ in range(3):
        lease_on(member, clock).release(Outcome.CUT_MID_STREAM, ConnectionCut("cut"))
    assert repr(member.breaker) == "<Breaker OPEN 0 faults>"
    clock.now += 2.0
    heard: list[Verdict] = []
    trial = lease_on(member, clock, heard=heard)
    assert not member.breaker.admits(clock.now)
    trial.start()
    assert repr(member.breaker) == "<Breaker CLOSED 0 faults>"
    assert heard == [Verdict.SUCCESS], "who waits must hear of it before a long body ends"
    trial.release(Outcome.OK)
    assert heard == [Verdict.SUCCESS, Verdict.SUCCESS]


def test_a_cancelled_trial_makes_room_for_another() -> None:
    member, clock = make_member(open_s=2.0, max_faults=1), FakeClock()
    lease_on(member, clock).release(Outcome.CUT_MID_STREAM, ConnectionCut("cut"))
    clock.now += 2.0
    for _ in range(3):
        lease_on(member, clock).abandon(asyncio.CancelledError())
        assert repr(member.breaker) == "<Breaker HALF_OPEN 0 faults>"


def test_the_speed_learned_holds_for_the_next_decision() -> None:
    member, clock = make_member(), FakeClock()
    before = member.replica.step
    for _ in range(40):
        lease = lease_on(member, clock, 1000)
        clock.now += 1000 / 10_000
        lease.start()
        lease.release(Outcome.OK)
    assert member.replica.step is member.speeds.step is not before
    assert 5000 < member.replica.prefill_tokens_per_s < 20_000


def test_how_far_away_a_replica_is_is_not_taken_for_slowness() -> None:
    """A decision adds the way to what is learned of it: it would count twice."""
    near, far, clock = make_member("near"), make_member("far"), FakeClock()
    far.distance.learn(0.25, far.replica)
    for _ in range(40):
        for member, way_s in ((near, 0.0), (far, 0.25)):
            lease = lease_on(member, clock, 1000)
            clock.now += 1000 / 10_000 + way_s
            lease.start()
            lease.release(Outcome.OK)
    assert far.replica.prefill_tokens_per_s == pytest.approx(near.replica.prefill_tokens_per_s, rel=1e-6)


def test_a_queue_of_prefills_shrinks_with_time_and_is_set_right_by_each_first_token() -> None:
    member, clock = make_member(), FakeClock(10.0)
    first, second = lease_on(member, clock, 2000), lease_on(member, clock, 1000)
    one_s, both_s = first.decision.prefill_s, first.decision.prefill_s + second.decision.prefill_s
    assert member.replica.prefilling_s == pytest.approx(both_s)
    assert member.replica.prefilled_at == pytest.approx(10.0 + both_s)
    clock.now += 3 * one_s
    first.start()
    assert member.replica.prefilled_at == pytest.approx(clock.now + second.decision.prefill_s)
    second.release(Outcome.CLIENT_GONE)
    assert (member.replica.prefilling_s, member.replica.prefilled_at) == (0.0, clock.now)
    first.release(Outcome.OK)


def test_who_waits_hears_when_a_queue_gets_shorter() -> None:
    member, clock, heard = make_member(), FakeClock(), list[Verdict]()
    first, second = lease_on(member, clock, heard=heard), lease_on(member, clock, heard=heard)
    first.start()
    assert heard == [Verdict.NOTHING]
    second.start()
    assert heard == [Verdict.NOTHING], "nothing is queued there any more: nobody waited for that"
    first.release(Outcome.OK)
    second.release(Outcome.OK)


def test_what_decodes_counts_the_tokens_that_it_reads() -> None:
    member, clock = make_member(), FakeClock()
    lease = lease_on(member, clock)
    assert member.replica.context_tokens == 0
    lease.start()
    assert member.replica.context_tokens == lease.demand.prompt.num_tokens
    lease.release(Outcome.OK)
    assert member.replica.context_tokens == 0
    assert lease.decode_s == 0.0


def test_ten_thousand_random_ends_leave_every_count_at_zero() -> None:
    """Pitfall: in-flight counts leak on error or disconnect."""
    dice = random.Random(4)
    clock = FakeClock()
    members = [make_member(f"r{i}") for i in range(4)]
    open_leases: list[Lease] = []
    errors = [None, ConnectionCut("cut"), UpstreamStatus(429, b""), UpstreamStatus(500, b""), ValueError("bug")]
    for step in range(10_000):
        clock.now += dice.random() / 10
        if dice.random() < 0.5 or not open_leases:
            open_leases.append(lease_on(dice.choice(members), clock, dice.randrange(5000)))
        elif dice.random() < 0.4:
            dice.choice(open_leases).start()
        else:
            end_somehow(open_leases.pop(dice.randrange(len(open_leases))), dice, dice.choice(errors))
        if step % 100 == 0:
            assert sum(member.replica.in_flight for member in members) == len(open_leases)
            waiting = [lease for lease in open_leases if not lease.has_started]
            assert sum(member.replica.prefilling for member in members) == len(waiting)
            tokens = sum(lease.decision.uncached_tokens for lease in waiting)
            assert sum(member.replica.prefilling_tokens for member in members) == tokens
    for lease in open_leases:
        end_somehow(lease, dice, None)
    assert [counts(member) for member in members] == [(0, 0, 0)] * 4
    assert not any(member.breaker.has_trial for member in members)


def end_somehow(lease: Lease, dice: random.Random, error: Exception | None) -> None:
    if dice.random() < 0.3:
        lease.abandon(asyncio.CancelledError())
    elif error is not None and dice.random() < 0.3:
        lease.abandon(error)
    else:
        lease.release(dice.choice(list(Outcome)), error)


def test_what_an_adapter_waits_for_its_slot_is_not_taken_for_its_loading() -> None:
    member, clock = make_member(), FakeClock(1.0)
    member.residency.num_slots = 1
    leases = []
    for adapter in "xy":
        demand = make_demand(adapter=adapter, is_stream=True)
        leases.append(take(demand, make_decision(member.replica, 10), member, clock, lambda *_: None))
        before = member.residency.load_s
        clock.now += 9.0
        leases[-1].start()
        assert (member.residency.load_s > before) is (adapter == "x")
    assert member.replica.num_free_adapter_slots == -1
    for lease in leases:
        lease.release(Outcome.OK)
    assert member.replica.num_free_adapter_slots == 1


def test_each_change_of_a_count_is_published() -> None:
    """Other workers go by what is published: it must never lag behind."""
    member, published = make_member(), list[tuple[int, int, int]]()
    member.publish = lambda: published.append(counts(member))
    lease = lease_on(member, FakeClock(), 100)
    lease.start()
    lease.release(Outcome.OK)
    lease_on(member, FakeClock(), 50).release(Outcome.CLIENT_GONE)
    assert published == [(1, 1, 100), (1, 0, 0), (0, 0, 0), (1, 1, 50), (0, 0, 0)]
