import asyncio
import json
import re
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from router import admin
from router.choice import Explanation
from router.company import Company
from router.config import Settings
from router.core import Outcome, Pool, Prompt, Request
from router.errors import PointsmanError
from router.explaining import add_explain_route, explainer, shown
from router.transports.web import openai_errors
from router.workers.frames import Explain, Explained
from router.workers.questions import Question, Questions
from tests.router.nouns import make_demand, make_prompt
from tests.router.served import served
from tests.router.test_placement import Fleet, chat

BODY = b'{"model": "m", "stream": true, "messages": [{"role": "user", "content": "hello"}]}'


class OnePrompt:
    """A prefix room for which every text is the same prompt."""

    async def read(self, request: Request, pool: Pool, adapter: str | None) -> Prompt:
        return make_prompt(96, 20)


def a_router(fleet: Fleet) -> Any:
    """What of a router an explanation needs."""
    found = {"m": (Pool("m"), None)}
    return SimpleNamespace(
        registry=SimpleNamespace(find=found.get), prompts=OnePrompt(), placement=fleet.placement, settings=Settings()
    )


def app_of(fleet: Fleet) -> web.Application:
    app = web.Application(middlewares=[openai_errors])
    add_explain_route(app, explainer(a_router(fleet)))
    return app


async def ask(body: bytes, headers: dict[str, str]) -> tuple[int, Any]:
    async with (
        served(app_of(Fleet())) as url,
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{url}/admin/explain", data=body) as response,
    ):
        return response.status, await response.json()


def state(fleet: Fleet) -> list[tuple[int, float, int]]:
    return [(each.in_flight, each.last_used, fleet.index.num_blocks(each.id)) for each in fleet.replicas.replicas]


def test_an_explanation_changes_nothing_and_says_what_is_then_decided() -> None:
    fleet = Fleet(num_replicas=4)
    fleet.serve(chat(1, 640))
    before = state(fleet)
    explanation = fleet.placement.explain(chat(1, 700))
    assert state(fleet) == before
    assert explanation.decision is not None
    assert fleet.place(chat(1, 700)).replica is explanation.decision.replica


def test_candidates_come_cheapest_first_with_their_terms_and_then_those_that_may_not_be_chosen() -> None:
    fleet = Fleet(num_replicas=3, max_in_flight=2)
    owner = fleet.serve(chat(1, 640))
    full = next(each for each in fleet.replicas.replicas if each.id != owner)
    full.in_flight = 2
    answer: Any = shown(fleet.placement.explain(chat(1, 700)))
    first, second, third = answer["candidates"]
    assert (first["replica"], first["is_chosen"], first["matched_tokens"]) == (owner, True, 640)
    assert first["cost"] < second["cost"]
    assert sum(first["terms"].values()) == pytest.approx(first["cost"], abs=1e-4)
    assert (third["replica"], third["cost"], third["excluded"]) == (full.id, None, "it has 2 requests in flight")
    assert answer["chosen"] == owner
    assert answer["reason"].startswith("policy=pointsman; matched_tokens=640")


@pytest.mark.parametrize(
    ("policy", "made_of"),
    [
        ("pointsman", {"weights", "useful_depth_s"}),
        ("llm-d-blend", {"filters", "scorers", "unit", "picker"}),
    ],
)
def test_the_answer_says_what_the_policy_is_made_of_also_where_nobody_is_there(policy: str, made_of: set[str]) -> None:
    for num_replicas in (0, 2):
        answer: Any = shown(Fleet(num_replicas, policy_name=policy).placement.explain(make_demand()))
        assert answer["policy"]["name"] == policy
        assert made_of == set(answer["policy"]) - {"name"}


def test_the_unit_is_the_policy_s_also_where_the_first_replica_may_not_be_chosen() -> None:
    fleet = Fleet(policy_name="llm-d-blend", max_in_flight=2)
    fleet.replicas.replicas[0].in_flight = 2
    answer: Any = shown(fleet.placement.explain(make_demand()))
    assert (answer["unit"], [each["excluded"] for each in answer["candidates"]]) == ("share", [None, "HasRoom"])


def test_a_blend_s_costs_follow_from_the_terms_and_weights_that_are_shown() -> None:
    fleet = Fleet(policy_name="llm-d-blend")
    fleet.serve(chat(1, 640))
    answer: Any = json.loads(json.dumps(shown(fleet.placement.explain(chat(1, 700)))))
    weights = answer["policy"]["scorers"]
    for each in answer["candidates"]:
        blend = sum(weights[name] * share for name, share in each["terms"].items())
        assert each["cost"] == pytest.approx(1.0 - blend, abs=1e-3)


def test_a_demand_that_would_wait_is_said_to() -> None:
    fleet = Fleet(num_replicas=1, max_in_flight=1)
    lease = fleet.place(make_demand())
    answer = shown(fleet.placement.explain(make_demand()))
    assert (answer["chosen"], answer["reason"]) == (None, "no replica may take it now: it would wait")
    lease.release(Outcome.OK)
    assert shown(Fleet(num_replicas=0).placement.explain(make_demand()))["candidates"] == []


async def test_the_route_takes_a_body_as_the_data_port_does_with_its_headers() -> None:
    status, answer = await ask(BODY, {"x-session-id": "s1"})
    assert (status, answer["model"], answer["session"], answer["prompt_tokens"]) == (200, "m", "s1", 96)
    assert len(answer["candidates"]) == 2


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b'{"model": "m"}', 400, "messages"),
        (b"[1]", 400, None),
        (b"{", 400, None),
        (b'{"model": "m", "prompt": 5}', 400, "prompt"),
        (b'{"model": "other", "prompt": "x"}', 404, "model"),
    ],
)
async def test_a_body_that_nothing_can_be_said_of_is_refused(body: bytes, status: int, param: str | None) -> None:
    answered, answer = await ask(body, {})
    assert (answered, answer["error"]["param"]) == (status, param)


@pytest.mark.parametrize(
    ("policy", "names"),
    [
        ("llm-d-token-aware", ["COST", "UNCACHED-TOKENS"]),
        ("llm-d-blend", ["COST 0..1"]),
        ("round-robin", ["COST"]),
    ],
)
async def test_the_command_names_the_unit(policy: str, names: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    async with served(app_of(Fleet(policy_name=policy))) as url:
        assert await admin.explain(url, "hello", "m", as_json=False) == 0
    _, head, *rows = capsys.readouterr().out.splitlines()
    assert [name for name in re.split(" {2,}", head.strip()) if name in names] == names
    assert len(rows) == 2


async def test_of_several_workers_one_is_asked_and_none_is_said_to_be_silent() -> None:
    told: list[Question] = []

    def answer(question: Question) -> bool:
        told.append(question)
        asyncio.get_running_loop().call_soon(questions.heard, Explained(0, 404, b'{"error": {}}'))
        return True

    questions = Questions(answer)
    company: Any = SimpleNamespace(questions=questions)
    nobody: Any = None
    assert await Company(company, nobody).explain(BODY, (("a", "b"),)) == (404, b'{"error": {}}')
    assert told == [Explain(0, BODY, (("a", "b"),))]
    company.questions = Questions(lambda _: False)
    with pytest.raises(PointsmanError, match="No worker says"):
        await Company(company, nobody).explain(BODY, ())


async def test_the_command_shows_a_line_for_each_replica(capsys: pytest.CaptureFixture[str]) -> None:
    async with served(app_of(Fleet())) as url:
        assert await admin.explain(url, "hello", "m", as_json=False) == 0
    head, names, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith("96 prompt tokens, 256 expected; policy=pointsman")
    assert names.split()[:7] == ["REPLICA", "CACHED", "TOKENS", "COST", "ms", "PREFILL", "ms"]
    assert sorted(row.strip("* ").split()[0] for row in rows) == ["a", "b"]
    assert sum(row.startswith("*") for row in rows) == 1


async def test_the_command_prints_json_and_fails_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    async with served(app_of(Fleet())) as url:
        assert await admin.explain(url, "hello", "m", as_json=True) == 0
        assert json.loads(capsys.readouterr().out)["model"] == "m"
        assert await admin.explain(url, "hello", "nope", as_json=False) == 1
    assert "does not exist" in capsys.readouterr().err


def test_published_policies_say_by_which_filter_a_replica_is_out() -> None:
    fleet = Fleet(num_replicas=2, policy_name="llm-d-token-aware")
    explanation: Explanation = fleet.placement.explain(make_demand(tried=frozenset({"a"})))
    by_id = {each.replica.id: each for each in explanation.weighed}
    assert (by_id["a"].excluded, by_id["a"].cost) == ("NotTried", None)
    assert by_id["b"].scores == {"uncached-tokens": 64.0}
