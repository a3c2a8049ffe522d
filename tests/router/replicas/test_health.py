import pytest

from router.core import Replica, ReplicaState
from router.errors import BadAnswer, ConnectFailed, UpstreamError, UpstreamTimeout
from router.replicas.fetch import ConnectRefused, open_session
from router.replicas.health import Event, Health, probe
from router.spec import ReplicaSpec
from tests.router.replicas.fakes import FakeReplica

REFUSED = ConnectRefused("refused")
BAD = BadAnswer("status 500")


def make_health(state: ReplicaState = ReplicaState.READY) -> Health:
    return Health(Replica(ReplicaSpec("http://a:1"), state=state))


def test_a_replica_starts_and_is_ready_at_its_first_good_probe() -> None:
    health = make_health(ReplicaState.STARTING)
    assert health.pass_probe()
    assert not health.pass_probe()
    assert repr(health) == "<Health a:1 READY 0 strikes>"


def test_one_refused_connection_loses_it() -> None:
    health = make_health()
    assert health.fail_probe(REFUSED)
    assert health.replica.state is ReplicaState.FAILED


@pytest.mark.parametrize("error", [BAD, UpstreamTimeout("silent"), ConnectFailed("no route")])
def test_two_other_bad_probes_in_a_row_lose_it(error: UpstreamError) -> None:
    health = make_health()
    assert not health.fail_probe(error)
    assert repr(health) == "<Health a:1 READY 1 strikes>"
    assert health.fail_probe(error)
    assert repr(health) == "<Health a:1 FAILED 2 strikes>"


def test_a_good_probe_between_two_bad_ones_forgives() -> None:
    health = make_health()
    health.fail_probe(BAD)
    health.pass_probe()
    health.fail_probe(BAD)
    assert health.replica.state is ReplicaState.READY


def test_it_is_lost_once_and_back_at_the_first_good_probe() -> None:
    """Pitfall: a replica once failed is never asked again, or must pass many probes before it serves."""
    health = make_health()
    assert [health.fail_probe(REFUSED) for _ in range(3)] == [True, False, False]
    assert health.pass_probe()
    assert health.replica.state is ReplicaState.READY


def test_a_replica_that_never_was_there_keeps_starting() -> None:
    health = make_health(ReplicaState.STARTING)
    assert health.fail_probe(REFUSED)
    assert health.replica.state is ReplicaState.STARTING


@pytest.mark.parametrize("state", [ReplicaState.STARTING, ReplicaState.READY, ReplicaState.FAILED])
def test_draining_lasts_until_it_is_undone(state: ReplicaState) -> None:
    health = make_health(state)
    assert health.follow(Event.DRAIN)
    health.pass_probe()
    assert repr(health) == "<Health a:1 DRAINING 0 strikes>"
    assert health.fail_probe(REFUSED), "what it had cached is lost, drained or not"
    assert repr(health) == "<Health a:1 DRAINING 2 strikes>"
    assert health.follow(Event.UNDRAIN)
    assert repr(health) == "<Health a:1 STARTING 2 strikes>"
    assert health.pass_probe()


async def test_a_server_that_says_it_is_well_passes() -> None:
    async with FakeReplica("m") as replica, open_session() as session:
        await probe(session, replica.spec, 5.0)


async def test_a_server_with_an_error_status_does_not() -> None:
    async with FakeReplica("m") as replica, open_session() as session:
        replica.answers["/health"] = (503, "engine dead")
        with pytest.raises(BadAnswer, match="/health answered with status 503"):
            await probe(session, replica.spec, 5.0)


@pytest.mark.parametrize("status", [404, 405])
async def test_a_server_without_a_health_route_is_well_when_it_lists_models(status: int) -> None:
    async with FakeReplica("m") as replica, open_session() as session:
        replica.answers["/health"] = (status, "")
        await probe(session, replica.spec, 5.0)
        replica.answers["/v1/models"] = (500, "")
        with pytest.raises(BadAnswer, match="/v1/models answered with status 500"):
            await probe(session, replica.spec, 5.0)


async def test_a_silent_server_times_out() -> None:
    async with FakeReplica("m") as replica, open_session() as session:
        replica.hanging.add("/health")
        with pytest.raises(UpstreamTimeout, match=r"no answer within 0\.05 s"):
            await probe(session, replica.spec, 0.05)
