"""What is tried again, where, and how often.

The faults: a retry that picks the replica that has just failed; no budget for retries, so that a fleet in trouble gets
a multiple of its load; refusals (4xx) and back-pressure (429, 503) that count as faults; and a retry of what the client
has begun to read.
"""

import pytest

from router.core import Outcome
from tests.contracts.adapters import chat_body, every_reply, over_http
from tests.contracts.conftest import Rig, Rigs
from tests.contracts.hostile import DONE, absent_replica, answers, closes, event, streams
from tests.fakes import until

OVERLOAD = {"error": {"message": "too much to do", "type": "overloaded", "param": None, "code": None}}


def asked(rig: Rig) -> list[str]:
    return [call.replica_id for call in rig.script.calls]


async def test_a_refused_connection_goes_to_another_replica(rigs: Rigs) -> None:
    gone = absent_replica()
    rig = await rigs.open(num_replicas=1, absent=[gone])
    rig.station.member(rig.replicas[0].id).replica.foreign_requests = 9
    rig.script.otherwise = answers({"id": 1})
    answer = await (await rig.ask()).answer()
    assert answer.status == 200
    assert answer.headers["x-pointsman-replica"] == rig.replicas[0].id
    assert [lease.replica.id for lease in rig.station.leases] == [gone.id, rig.replicas[0].id]
    assert rig.station.outcomes == [Outcome.UPSTREAM_FAILED, Outcome.OK]
    assert rig.station.faults == {gone.id: 1}


@pytest.mark.parametrize("status", [500, 502, 504])
@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
async def test_a_fault_before_the_first_byte_goes_to_another_replica(rigs: Rigs, status: int, is_stream: bool) -> None:
    rig = await rigs.open()
    rig.script.queue.append(answers({}, status))
    rig.script.otherwise = streams(event("a"), DONE) if is_stream else answers({"id": 1})
    answer = await (await rig.ask(stream=is_stream)).answer()
    assert answer.status == 200
    assert answer.payload == (event("a") + DONE if is_stream else b'{"id": 1}')
    first, second = asked(rig)
    assert first != second
    assert answer.headers["x-pointsman-replica"] == second
    assert rig.station.faults == {first: 1}


@pytest.mark.parametrize("status", [429, 503])
async def test_back_pressure_goes_to_another_replica_and_blames_none(rigs: Rigs, status: int) -> None:
    rig = await rigs.open()
    rig.script.queue.append(answers(OVERLOAD, status, ("Retry-After", "7")))
    rig.script.otherwise = answers({"id": 1})
    assert (await (await rig.ask()).answer()).status == 200
    first, second = asked(rig)
    assert first != second
    assert rig.station.faults == {}
    now = rig.station.clock()
    assert not rig.station.member(first).breaker.admits(now + 6.9), "it asked for 7 s"
    assert rig.station.member(first).breaker.admits(now + 7.1)


@pytest.mark.parametrize("status", [429, 503])
async def test_back_pressure_of_the_only_replica_reaches_the_client_with_its_retry_after(
    rigs: Rigs, status: int
) -> None:
    rig = await rigs.open(num_replicas=1)
    rig.script.otherwise = answers(OVERLOAD, status, ("Retry-After", "7"))
    answer = await (await rig.ask(stream=True)).answer()
    assert (answer.status, answer.headers["retry-after"]) == (status, "7")
    assert answer.error["message"] == "too much to do"
    assert len(rig.script.calls) == 1


@over_http
@pytest.mark.parametrize("status", [400, 401, 404, 413, 422, 501])
async def test_a_refusal_passes_through_and_is_not_tried_again(rigs: Rigs, status: int) -> None:
    rig = await rigs.open()
    rig.script.otherwise = answers({"error": {"message": "no", "type": "t", "param": "p", "code": "c"}}, status)
    answer = await (await rig.ask(stream=True)).answer()
    assert answer.status == status
    assert answer.error == {"message": "no", "type": "t", "param": "p", "code": "c"}
    assert len(rig.script.calls) == 1
    assert rig.station.faults == {}


@every_reply
async def test_no_replica_is_tried_twice_and_attempts_are_bounded(rigs: Rigs) -> None:
    rig = await rigs.open(num_replicas=5, max_attempts=3)
    rig.script.otherwise = answers({"error": {"message": "broke"}}, 500)
    answer = await (await rig.ask()).answer()
    assert (answer.status, answer.error["message"]) == (500, "broke")
    assert len(asked(rig)) == len(set(asked(rig))) == 3


@every_reply
async def test_there_is_no_second_attempt_where_there_is_no_second_replica(rigs: Rigs) -> None:
    rig = await rigs.open(num_replicas=1, max_attempts=3)
    rig.script.otherwise = closes
    assert (await (await rig.ask()).answer()).status == 502
    assert len(rig.script.calls) == 1


async def test_a_spent_retry_budget_ends_retries_and_requests_earn_it_anew(rigs: Rigs) -> None:
    rig = await rigs.open(retries=1.0)
    broken, good = answers({}, 500), answers({"id": 1})
    statuses = []
    for _ in range(6):  # 5 requests earn one retry: 0.2 each
        rig.script.queue.clear()
        rig.script.queue.append(broken)
        rig.script.otherwise = good
        statuses.append((await (await rig.ask()).answer()).status)
        for member in rig.station.registry._members.values():
            member.breaker.num_faults = 0
    assert statuses == [200, 500, 500, 500, 200, 500]


async def test_the_second_attempt_sends_the_same_bytes(rigs: Rigs) -> None:
    rig = await rigs.open()
    rig.script.queue.append(answers({}, 500))
    rig.script.otherwise = answers({"id": 1})
    client = await rig.ask(("X-Request-Id", "my-id"), user="é", unknown_field={"a": [1, 2.50]})
    await client.answer()
    assert [call.body for call in rig.script.calls] == [chat_body(user="é", unknown_field={"a": [1, 2.50]})] * 2
    assert [call.headers["x-request-id"] for call in rig.script.calls] == ["my-id", "my-id"]


async def test_a_second_attempt_waits_for_a_place_on_another_replica(rigs: Rigs) -> None:
    rig = await rigs.open(num_replicas=2, max_in_flight=1)
    holder = await rig.ask(user="holder")
    held = await rig.call()
    client = await rig.ask()
    failing = await rig.call(1)
    failing.json({}, 500)
    await until(lambda: rig.station.queue.num_waiting == 1)
    rig.script.otherwise = answers({"id": 2})
    held.json({"id": 1})
    assert (await holder.answer()).payload == b'{"id": 1}'
    assert (await client.answer()).payload == b'{"id": 2}'
    assert asked(rig) == [held.replica_id, failing.replica_id, held.replica_id]
