"""engine.proto's way of handing a prompt's KV from one replica to another, from body to call and back."""

import json
from typing import Any

import msgspec
import pytest

from pointsman.v1 import common_pb2, engine_pb2
from router.errors import InvalidRequest, UpstreamStatus
from router.upstream.grpc.answering import Plan
from router.upstream.handshakes import first_body, second_body
from tests.router.upstream.grpc.plans import attempt, planner

STOP, LENGTH = common_pb2.FINISH_REASON_STOP, common_pb2.FINISH_REASON_LENGTH


def planned(body: bytes) -> Plan:
    plan = planner().now(msgspec.structs.replace(attempt(), body=body))
    assert plan is not None
    return plan


def asked(plan: Plan) -> engine_pb2.GenerateRequest:
    return engine_pb2.GenerateRequest.FromString(plan.calls[0].message)


def test_both_halves_of_a_request_may_be_spoken_to_over_grpc() -> None:
    """What the first says of its KV is what an engine says over HTTP, and goes to the second."""
    body = attempt(stream=True, max_tokens=9).body
    plan = planned(first_body(body))
    first = asked(plan)
    assert first.sampling.max_tokens == 1
    assert first.kv_transfer == engine_pb2.KvTransfer(do_remote_decode=True)
    kept = {"do_remote_prefill": True, "remote_engine_id": "e", "remote_block_ids": [3, 0], "remote_host": "h"}
    event = engine_pb2.GenerateEvent(finish_reason=LENGTH, kv_transfer={**kept, "remote_port": 5600})
    plan.answering.take(0, event.SerializeToString())
    answer = plan.answering.end()
    assert json.loads(answer)["kv_transfer_params"] == {**kept, "do_remote_decode": False, "remote_port": 5600}
    plan = planned(second_body(body, answer))
    assert asked(plan).kv_transfer == event.kv_transfer
    assert asked(plan).sampling.max_tokens == 9


def test_where_nothing_is_handed_over_nothing_is_said_of_it() -> None:
    plan = planned(attempt().body)
    assert not asked(plan).HasField("kv_transfer")
    plan.answering.take(0, engine_pb2.GenerateEvent(finish_reason=STOP).SerializeToString())
    assert "kv_transfer_params" not in json.loads(plan.answering.end())


@pytest.mark.parametrize(
    "params", [{"tp_size": 1}, {"remote_port": 70_000}, {"remote_block_ids": [[1, 2]]}, {"do_remote_decode": "yes"}]
)
def test_what_our_engine_does_not_know_of_a_handover_is_refused_by_name(params: dict[str, Any]) -> None:
    with pytest.raises((UpstreamStatus, InvalidRequest)) as caught:
        planned(attempt(kv_transfer_params=params).body)
    words = caught.value.body.decode() if isinstance(caught.value, UpstreamStatus) else str(caught.value)
    assert next(iter(params)) in words
