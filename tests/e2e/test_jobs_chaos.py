"""Jobs while routers and Redis are killed: each accepted job has exactly one end, each webhook arrives with a stable
id, and nothing is left over. `CHAOS_S=600` makes it last for ten minutes instead of two.

With `appendfsync always` that holds for every job that was accepted. With `everysec` Redis dies here as with its host:
what it had not synced (two seconds at most) is lost, and nothing else may be.
"""

import json
import os
from collections.abc import Mapping
from typing import Any

import pytest

from loadtest.peers.process import free_ports
from router.store import names
from tests.e2e.company import company
from tests.e2e.fake_replica import fake_replicas
from tests.e2e.fleet import wait_until
from tests.e2e.jobs_chaos import Accepted, Rage, Receiver, Submitters, state_of
from tests.router.store.servers import Server, server

CHAOS_S = float(os.environ.get("CHAOS_S", "120")) / 2
# Of what must come to pass, however slow the machine is.
PATIENCE_S = 600.0
ENDED = {"succeeded", "failed", "expired", "cancelled"}
UNSYNCED_S = {"always": 0.0, "everysec": 2.0}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(CHAOS_S + 3 * PATIENCE_S)]


@pytest.mark.parametrize("fsync", UNSYNCED_S)
def test_every_accepted_job_has_one_end_and_its_webhook_arrives(fsync: str) -> None:
    [port] = free_ports(1)
    with (
        fake_replicas(2) as replicas,
        server("6.2", "--appendonly", "yes", "--appendfsync", fsync, port=port) as redis,
        Receiver().serving() as receiver,
        company(
            replicas,
            redis=f"redis://127.0.0.1:{port}",
            webhook_http="true",
            webhook_network="127.0.0.0/8",
        ) as fleet,
    ):
        wait_until(lambda: fleet.replicas(), 60, "replicas are known")
        crowd = Submitters(fleet, receiver.url)
        rage = Rage(fleet, redis, crowd, UNSYNCED_S[fsync])
        try:
            rage.go_on(CHAOS_S)
        finally:
            crowd.stop()
        ends: dict[str, dict[str, Any]] = {}

        def all_have_ended() -> bool:
            for id in crowd.accepted.keys() - ends.keys():
                state = state_of(fleet, id)
                if state is not None and state["status"] in ENDED | {"unknown"}:
                    ends[id] = state
            return len(ends) == len(crowd.accepted)

        wait_until(all_have_ended, PATIENCE_S, "every accepted job has ended")
        lost = {id for id, end in ends.items() if end["status"] == "unknown"}
        assert all(rage.may_have_lost(crowd.accepted[id]) for id in lost), "a job was lost that was safe"
        second = {id for id, job in crowd.accepted.items() if job.other_id is not None}
        assert second <= lost, "a key of idempotency led to two jobs"
        kept = {id: end for id, end in ends.items() if id not in lost}
        wait_until(
            lambda: {f"evt_{id}" for id in kept} <= set(receiver.bodies), PATIENCE_S, "every webhook has arrived"
        )
        wait_until(lambda: not _left_over(redis), PATIENCE_S, "nothing is left over")
        if fsync == "always":
            assert not lost
            _check_one_end(kept, receiver.bodies)
        _check_answers(kept, crowd.accepted)
        num_succeeded = sum(end["status"] == "succeeded" for end in kept.values())
        print(
            f"{fsync}: {len(ends)} jobs accepted, {num_succeeded} succeeded, {len(lost)} lost; {crowd.num_refused} "
            f"refused; {rage.num_routers} routers and {len(rage.redis_deaths)} times Redis killed; "
            f"{sum(map(len, receiver.bodies.values()))} webhooks"
        )
        assert num_succeeded > 0.5 * len(kept)


def _check_one_end(ends: Mapping[str, dict[str, Any]], bodies: Mapping[str, list[bytes]]) -> None:
    """However often a webhook came, it told the same."""
    for id, end in ends.items():
        told = [json.loads(body)["data"] for body in bodies[f"evt_{id}"]]
        assert all((each["status"], each["response"]) == (end["status"], end["response"]) for each in told), id


def _check_answers(ends: Mapping[str, dict[str, Any]], jobs: Mapping[str, Accepted]) -> None:
    """Each answer is that to its own request; who has none says why."""
    for id, end in ends.items():
        if end["status"] == "succeeded":
            assert end["response"]["body"]["choices"][0]["message"]["content"] == jobs[id].key
        else:
            assert end["errors"], id


def _left_over(redis: Server) -> list[str]:
    # Not webhooks: one that was answered with an error for the second time is due again in minutes.
    kinds = ("queue", "leases", "delayed", "deadlines")
    return [kind for kind in kinds if redis.command("ZCARD", names.JOBS + kind)]
