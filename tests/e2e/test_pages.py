"""What real processes say besides answers: explanations, documents, tokens; and where the requests of an agent go."""

import json
import urllib.error
import urllib.request
from collections import Counter
from typing import Any

import pytest

from router.transports.openapi import ADMIN, DATA
from tests.e2e.company import company
from tests.e2e.fake_replica import fake_replicas
from tests.e2e.fleet import get_json

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def post(url: str, body: object, **headers: str) -> tuple[int, dict[str, str], Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, dict(response.headers), json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), json.loads(error.read())


def test_one_of_several_workers_says_what_it_would_decide_and_both_ports_describe_themselves() -> None:
    with fake_replicas(2) as replicas, company(replicas) as fleet:
        status, _, told = post(f"{fleet.admin_url}/admin/explain", CHAT)
        assert (status, told["model"], told["unit"]) == (200, "m", "seconds")
        assert {each["replica"] for each in told["candidates"]} == {replica.id for replica in replicas}
        assert told["chosen"] in {replica.id for replica in replicas}
        assert told["policy"]["name"] == "pointsman"
        ways_s = [each["round_trip_s"] for each in get_json(f"{fleet.admin_url}/admin/replicas")["replicas"]]
        assert all(way_s is not None and 0.0 < way_s < 1.0 for way_s in ways_s), "measured by the feed, told to workers"
        status, _, told = post(f"{fleet.admin_url}/admin/explain", CHAT | {"model": "none"})
        assert (status, told["error"]["code"]) == (404, "model_not_found")
        assert set(get_json(f"{fleet.url}/openapi.json")["paths"]) <= {each.path for each in DATA}
        described = set(get_json(f"{fleet.admin_url}/openapi.json")["paths"])
        assert {"/admin/explain", "/admin/workers/restart"} <= described <= {each.path for each in ADMIN}
        status, _, told = post(f"{fleet.url}/tokenize", {"prompt": "a"})
        assert status == 404, "the router has no tokenizer of this model, and these replicas tokenize for nobody"
        assert "error" in told


def test_the_requests_of_one_agent_keep_their_replica() -> None:
    """Each request brings more of the same conversation, on a connection of its own; others' requests come between.
    In one process: of several, each hears of the others' dispatches a moment later."""
    with fake_replicas(4) as replicas, company(replicas, workers=1) as fleet:
        used: dict[int, Counter[str]] = {agent: Counter() for agent in range(6)}
        for turn in range(6):
            for agent in used:
                words = [f"agent {agent} does step {step} of its work. " * 20 for step in range(turn + 1)]
                messages = [{"role": "user", "content": each} for each in words]
                body = {"model": "m", "messages": messages}
                status, headers, _ = post(f"{fleet.url}/v1/chat/completions", body, **{"x-session-id": f"s{agent}"})
                assert status == 200
                used[agent][{name.lower(): value for name, value in headers.items()}["x-pointsman-replica"]] += 1
        assert [len(replicas) for replicas in used.values()] == [1] * len(used), used
        assert len({next(iter(replicas)) for replicas in used.values()}) > 1, "sessions are spread"
