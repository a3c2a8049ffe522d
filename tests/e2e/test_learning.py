"""What one router process learned of a replica's speed, the others know: two workers of one host, and two hosts over
one Redis. Real processes, over a replica that the test plays."""

import http.client
from contextlib import closing

import psutil
import pytest

from tests.e2e.company import DONE, company, connect, figures, post, processes
from tests.e2e.fake_replica import FakeReplica, fake_replicas
from tests.e2e.fleet import BIN, Fleet, running, wait_until
from tests.router.store.servers import server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

WITHIN_S = 60.0
PROMPT = "What a replica computes for this is long enough to teach how fast it is. " * 20


def teach(connection: http.client.HTTPConnection) -> None:
    """Requests on one connection, so that one process sees all of them; of no prompt anything is cached."""
    for number in range(30):
        response = post(connection, f"{number}. {PROMPT}", num_tokens=2, pace_s=0.02)
        assert response.read().endswith(DONE)


def sources(fleet: Fleet) -> set[str]:
    """Over all processes of this router."""
    name = "pointsman_replica_speed_source"
    return {key.split('source="')[1].rstrip('"}') for key in figures(fleet) if key.startswith(name + "{")}


def test_workers_begin_with_what_a_sibling_has_learned_and_keep_it_when_the_sibling_dies() -> None:
    with fake_replicas(1) as (replica,), company([replica], workers=2, redis="none") as fleet:
        assert sources(fleet) == {"prior"}
        with closing(connect(fleet)) as connection:
            teach(connection)
            wait_until(lambda: sources(fleet) == {"own", "sibling"}, WITHIN_S, "the other worker knows")
            (row,) = fleet.replicas()
            assert row["speed_source"] == "own"
            assert row["speed_samples"] >= 20
            serving_it(fleet, connection).kill()
        wait_until(
            lambda: figures(fleet)["pointsman_workers"] == 2 and sources(fleet) == {"sibling"},
            WITHIN_S,
            "so does who takes the dead one's place",
        )
        assert figures(fleet)["pointsman_lessons_refused"] == 0


def serving_it(fleet: Fleet, connection: http.client.HTTPConnection) -> psutil.Process:
    """The worker at the other end."""
    port = connection.sock.getsockname()[1]
    (found,) = [
        worker
        for worker in processes(fleet, "worker").values()
        if any(each.raddr and each.raddr.port == port for each in worker.net_connections())
    ]
    return found


def test_a_router_that_begins_knows_what_one_on_another_host_has_learned() -> None:
    with fake_replicas(1) as (replica,), server("6.2") as redis:
        settings = {"POINTSMAN_REDIS": redis.url}
        with running(serve(replica), until='"message": "serving"', **settings) as one:
            with closing(connect(one)) as connection:
                teach(connection)
            wait_until(lambda: redis.client.keys("*lessons*"), WITHIN_S, "it is put into the store")
            with running(serve(replica), until='"message": "serving"', **settings) as other:
                wait_until(lambda: sources(other) == {"sibling"}, WITHIN_S, "it is read")
                known = [fleet.replicas()[0]["prefill_tokens_per_s"] for fleet in (one, other)]
                assert known[1] == pytest.approx(known[0], rel=0.5)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_router_that_begins_asks_a_sibling_where_no_store_is_shared(workers: int) -> None:
    alone = {"POINTSMAN_REDIS": "none"}
    with (
        fake_replicas(1) as (replica,),
        running([*serve(replica), "--workers", str(workers)], until='"message": "serving"', **alone) as one,
    ):
        with closing(connect(one)) as connection:
            teach(connection)
        wait_until(lambda: "own" in sources(one), WITHIN_S, "it has learned")
        command = [*serve(replica), "--workers", str(workers), "--warm-from", one.admin_url]
        # What a worker has learned the feed hears within a second, and says to who asks.
        wait_until(lambda: workers == 1 or "sibling" in sources(one), WITHIN_S, "its feed knows")
        with running(command, until='"message": "serving"', **alone) as other:
            wait_until(lambda: sources(other) == {"sibling"}, WITHIN_S, "it is told")


def serve(replica: FakeReplica) -> list[str]:
    return [str(BIN / "python"), "-m", "router", "serve", "--replica", replica.url]
