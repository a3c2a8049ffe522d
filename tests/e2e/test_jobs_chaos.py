"""Jobs while routers and Redis are killed: each accepted job has exactly one end, each webhook arrives with a stable
id, and nothing is left over. `CHAOS_S=600` makes it last for ten minutes."""

import json
import os

import pytest

from router.store import names
from tests.e2e.company import company
from tests.e2e.fake_replica import fake_replicas
from tests.e2e.fleet import free_ports, wait_until
from tests.e2e.jobs_chaos import Receiver, Submitters, rage, state_of
from tests.router.store.servers import server

CHAOS_S = float(os.environ.get("CHAOS_S", "30"))
ENDED = {"succeeded", "failed", "expired", "cancelled"}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(CHAOS_S + 240)]


def test_every_accepted_job_has_one_end_and_its_webhook_arrives() -> None:
    [port] = free_ports(1)
    with (
        fake_replicas(2) as replicas,
        server("6.2", "--appendonly", "yes", "--appendfsync", "always", port=port) as redis,
        Receiver().serving() as receiver,
        company(
            replicas,
            redis=f"redis://127.0.0.1:{port}",
            webhook_http="true",
            webhook_network="127.0.0.0/8",
        ) as fleet,
    ):
        wait_until(lambda: fleet.replicas(), 30, "replicas are known")
        crowd = Submitters(fleet, receiver.url)
        kills = rage(fleet, redis, CHAOS_S)
        crowd.stop()
        assert kills["router"] > 2
        assert kills["redis"] > 1
        ends: dict[str, dict[str, object]] = {}

        def all_have_ended() -> bool:
            for id in crowd.accepted.keys() - ends.keys():
                state = state_of(fleet, id)
                if state is not None and state["status"] in ENDED | {"unknown"}:
                    ends[id] = state
            return len(ends) == len(crowd.accepted)

        wait_until(all_have_ended, 120, "every accepted job has ended")
        states = [end["status"] for end in ends.values()]
        assert states.count("unknown") == 0, "an accepted job was lost"
        assert crowd.num_second_ids == 0, "a key of idempotency led to two jobs"
        wait_until(lambda: {f"evt_{id}" for id in ends} <= set(receiver.bodies), 120, "every webhook has arrived")
        _check_one_end(ends, crowd.accepted, receiver.bodies)
        wait_until(lambda: not _left_over(redis.command), 90, "nothing is left over")
        print(f"{len(ends)} jobs, {crowd.num_refused} refused, {kills}, {states.count('succeeded')} succeeded")
        assert states.count("succeeded") > 0.9 * len(states)


def _check_one_end(ends: dict[str, dict[str, object]], keys: dict[str, str], bodies: dict[str, list[bytes]]) -> None:
    for id, end in ends.items():
        told = [json.loads(body)["data"] for body in bodies[f"evt_{id}"]]
        assert all((each["status"], each["response"]) == (end["status"], end["response"]) for each in told), id
        if end["status"] == "succeeded":
            response = end["response"]
            assert isinstance(response, dict)
            assert response["body"]["choices"][0]["message"]["content"] == keys[id]


def _left_over(command: object) -> list[str]:
    assert callable(command)
    # Not webhooks: one that was answered with an error for the second time is due again in minutes.
    kinds = ("queue", "leases", "delayed", "deadlines")
    return [kind for kind in kinds if command("ZCARD", names.JOBS + kind)]
