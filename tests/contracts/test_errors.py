"""What a client is told when a replica answers with an error, or with nonsense.

The fault: error bodies in the shapes of five engines, of which SDKs read one; and a router that trips over an answer
that is not HTTP, or keeps its connection.
"""

import json
from collections.abc import Mapping, Sequence

import pytest

from router.choice import View, Weighed
from router.core import Decision, Demand, Lease
from tests.contracts.adapters import every_reply, over_http
from tests.contracts.conftest import Rigs
from tests.contracts.hostile import answers

SHAPES: dict[str, tuple[object, str]] = {
    "openai": ({"error": {"message": "bad", "type": "invalid_request_error", "param": None, "code": None}}, "bad"),
    "a string for an error": ({"error": "bad"}, "bad"),
    "flat, as older engines": ({"object": "error", "message": "bad", "type": "BadRequestError", "code": 400}, "bad"),
    "detail, as FastAPI": ({"detail": "bad"}, "bad"),
    "detail in parts, as FastAPI": ({"detail": [{"loc": ["body"], "msg": "bad"}]}, '[{"loc": ["body"], "msg": "bad"}]'),
    "no JSON": (b"<html>bad</html>", "<html>bad</html>"),
    "JSON, but no object": ([1], "[1]"),
    "nothing": (b"", "The replica answered 400."),
    "no UTF-8": (b"\xff\xfe", "\ufffd\ufffd"),
}


@over_http
@pytest.mark.parametrize("shape", SHAPES)
async def test_an_error_of_any_shape_is_normalised_with_its_status(rigs: Rigs, shape: str) -> None:
    body, message = SHAPES[shape]
    rig = await rigs.open()
    rig.script.otherwise = answers(body, 400)
    answer = await (await rig.ask(stream=True)).answer()
    assert answer.status == 400
    assert answer.headers["content-type"] == "application/json"
    assert answer.error["message"] == message
    assert isinstance(answer.error["type"], str)


@over_http
async def test_an_option_that_the_engine_does_not_support_is_a_400_that_names_it(rigs: Rigs) -> None:
    """The fault: options that are dropped on the way, or ignored without a word."""
    rig = await rigs.open()
    words = {"message": "`best_of` is not supported", "type": "invalid_request_error", "param": "best_of", "code": None}
    rig.script.otherwise = answers({"error": words}, 400)
    answer = await (await rig.ask(best_of=3)).answer()
    assert b'"best_of": 3' in rig.script.calls[0].body
    assert (answer.status, answer.error) == (400, words)


async def test_an_error_names_the_replica_and_the_request(rigs: Rigs) -> None:
    rig = await rigs.open()
    rig.script.otherwise = answers({}, 400)
    answer = await (await rig.ask(("X-Request-Id", "my-id"))).answer()
    assert answer.headers["x-request-id"] == "my-id"
    assert answer.headers["x-pointsman-replica"] == rig.script.calls[0].replica_id


@over_http
async def test_an_endless_error_body_is_cut_at_a_bound(rigs: Rigs) -> None:
    rig = await rigs.open()
    rig.script.otherwise = answers(b"x" * 5_000_000, 400)
    answer = await (await rig.ask()).answer()
    assert len(answer.payload) < 70_000
    assert str(answer.error["message"]).startswith("xxx")


@every_reply
async def test_an_unknown_model_is_a_404_without_a_call(rigs: Rigs) -> None:
    rig = await rigs.open()
    answer = await (await rig.ask(model="other", stream=True)).answer()
    assert (answer.status, answer.error["code"], answer.error["param"]) == (404, "model_not_found", "model")
    assert rig.script.calls == []


@every_reply
async def test_a_prompt_over_the_context_is_a_400_without_a_call(rigs: Rigs) -> None:
    rig = await rigs.open()
    rig.station.registry.pools()[0].max_model_len = 64
    answer = await (await rig.ask(stream=True)).answer()
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    assert rig.script.calls == []


async def test_a_full_house_is_a_429_with_retry_after(rigs: Rigs) -> None:
    rig = await rigs.open(max_open_requests=1)
    first = await rig.ask(stream=True)
    await rig.call()
    answer = await (await rig.ask(stream=True)).answer()
    assert (answer.status, answer.error["type"]) == (429, "rate_limit_error")
    assert int(answer.headers["retry-after"]) >= 1
    first.leave()


async def test_a_router_that_drains_refuses_new_work_and_ends_what_is_open(rigs: Rigs) -> None:
    rig = await rigs.open()
    client = await rig.ask()
    call = await rig.call()
    rig.station.gate.drain()
    answer = await (await rig.ask()).answer()
    assert (answer.status, answer.error["code"]) == (503, "draining")
    call.json({"id": 1})
    assert (await client.answer()).payload == b'{"id": 1}'


@every_reply
async def test_a_fault_of_our_own_is_a_500_that_blames_nobody(rigs: Rigs) -> None:
    class Broken:
        def about(self) -> Mapping[str, object]:
            return {}

        def explain(self, demand: Demand, view: View) -> Sequence[Weighed]:
            return ()

        def placed(self, lease: Lease) -> None: ...

        def decide(self, demand: Demand, view: View) -> Decision | None:
            raise RuntimeError("a plug-in")

    rig = await rigs.open()
    rig.station.placement.policy = Broken()
    answer = await (await rig.ask()).answer()
    assert answer.status == 500
    assert "plug-in" not in json.dumps(answer.error)
    assert rig.station.faults == {}
