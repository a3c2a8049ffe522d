import asyncio
import random

import pytest

from router.core import Decision, Lease, Load, Outcome, Replica, ReplicaState
from router.spec import ReplicaSpec
from tests.router.nouns import make_demand, make_replica


class Listener:
    """Hears what a lease tells."""

    def __init__(self) -> None:
        self.started: list[Lease] = []
        self.released: list[Lease] = []

    def lease(self, id: str = "r", replica: Replica | None = None) -> Lease:
        decision = Decision(replica or make_replica(), "p", 32, 8, 0.25, {})
        return Lease(make_demand(id), decision, 1.0, self.started.append, self.released.append)


def test_a_replicas_id_is_its_url_without_the_scheme() -> None:
    assert ReplicaSpec("http://a:8000").id == "a:8000"
    assert ReplicaSpec("https://b/base").id == "b/base"
    assert Replica(ReplicaSpec("http://a:8000")).id == "a:8000"


def test_a_replica_shows_its_state() -> None:
    replica = make_replica("a:8000", state=ReplicaState.DRAINING, in_flight=4)
    assert repr(replica) == "<Replica a:8000 DRAINING 4 in flight>"


def test_an_idle_replica_expects_no_wait() -> None:
    assert make_replica().expected_wait_s == 0.0


def test_expected_wait_is_what_is_queued_and_a_step_of_those_that_run() -> None:
    replica = make_replica(
        in_flight=5,
        prefilling=2,
        prefilling_tokens=3000,
        prefilling_s=1.6,
        foreign_requests=1,
        foreign_tokens=1000,
        tokens_per_s=2000.0,
        base_s=0.01,
    )
    assert replica.num_running == 5 - 2 + 1
    assert replica.expected_wait_s == pytest.approx(1.6 + 1000 / 2000 + replica.step.decode_s(4, 0))


def test_a_report_alone_moves_no_expectation() -> None:
    """Only the replicas room turns reports into foreign counts: no second reading of the same load."""
    assert make_replica(load=Load(1.0, 50, 50, 0.9, 10_000)).expected_wait_s == 0.0


def test_the_reason_fits_one_header_line() -> None:
    decision = Decision(make_replica(), "pointsman", 128, 16, 0.01234, {"prefill": 1.0})
    assert decision.reason == "policy=pointsman; matched_tokens=128; expected_wait_ms=12.3"
    assert "\n" not in decision.reason


def test_a_lease_starts_once() -> None:
    heard = Listener()
    lease = heard.lease()
    lease.start()
    lease.start()
    assert heard.started == [lease]
    assert lease.has_started


def test_a_lease_is_released_exactly_once() -> None:
    heard = Listener()
    lease = heard.lease()
    lease.release(Outcome.OK)
    with pytest.raises(RuntimeError, match="already released"):
        lease.release(Outcome.CLIENT_GONE)
    assert heard.released == [lease]
    assert lease.outcome is Outcome.OK


def test_a_lease_knows_outcome_and_error_when_it_tells_of_its_release() -> None:
    heard: list[tuple[Outcome | None, BaseException | None]] = []
    lease = Listener().lease()
    lease.on_released = lambda it: heard.append((it.outcome, it.error))
    error = ValueError("x")
    lease.release(Outcome.UPSTREAM_FAILED, error)
    assert heard == [(Outcome.UPSTREAM_FAILED, error)]


def test_a_lease_left_by_an_error_counts_as_a_failure() -> None:
    heard, error = Listener(), ValueError("x")
    lease = heard.lease()
    lease.abandon(error)
    assert (lease.outcome, lease.error) == (Outcome.UPSTREAM_FAILED, error)
    assert heard.released == [lease]


def test_a_lease_left_by_a_cancel_counts_as_the_clients_leaving() -> None:
    lease, error = Listener().lease(), asyncio.CancelledError()
    lease.abandon(error)
    assert (lease.outcome, lease.error) == (Outcome.CLIENT_GONE, error)


def test_a_lease_shows_whom_it_holds_and_how_it_ended() -> None:
    lease = Listener().lease("req-1", make_replica("a:1"))
    assert repr(lease) == "<Lease req-1 on a:1 open>"
    lease.release(Outcome.CUT_MID_STREAM)
    assert repr(lease) == "<Lease req-1 on a:1 cut_mid_stream>"


@pytest.mark.parametrize("seed", range(5))
def test_open_leases_and_releases_always_add_up(seed: int) -> None:
    rng, heard = random.Random(seed), Listener()
    open_leases: list[Lease] = []
    for i in range(200):
        if open_leases and rng.random() < 0.5:
            lease = open_leases.pop(rng.randrange(len(open_leases)))
            if rng.random() < 0.5:
                lease.start()
            if rng.random() < 0.5:
                lease.release(rng.choice(list(Outcome)))
            else:
                lease.abandon(RuntimeError())
        else:
            open_leases.append(heard.lease(str(i)))
        assert len(heard.released) == len(set(map(id, heard.released)))
        assert all(lease.outcome is None for lease in open_leases)
        assert all(lease.outcome is not None for lease in heard.released)
