"""One request on two replicas through the whole data path, in memory: leases, failures, cancels, counts."""

import asyncio
import json
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest

from router.core import Outcome
from router.errors import ConnectionCut
from tests.fakes import FakeExchange, FakeReply, turns, until
from tests.router.halves import BODY, DONE, EVENT, FIRST, NUM_TOKENS, PARAMS, Halves, sent


@pytest.fixture
async def halves() -> AsyncIterator[Halves]:
    halves = Halves()
    yield halves
    for task in halves.tasks:
        task.cancel()
    await asyncio.gather(*halves.tasks, return_exceptions=True)
    assert halves.station.left_over == {}
    assert halves.upstream.num_live == 0
    assert not halves.handovers._open


@pytest.mark.parametrize("has_idle", [False, True])
async def test_one_computes_the_prompt_and_the_other_answers(halves: Halves, has_idle: bool) -> None:
    station = halves.open()
    halves.upstream.has_idle = has_idle
    reply = halves.ask(headers=(("x-other", "kept"), ("authorization", "Bearer mine")))
    first = await halves.exchange(0)
    assert (first.attempt.replica.id, first.attempt.path) == ("p", "/v1/completions")
    assert dict(first.attempt.headers)["authorization"] == "Bearer key-of-p"
    assert dict(first.attempt.headers)["x-other"] == "kept"
    assert (sent(first)["max_tokens"], sent(first)["stream"]) == (1, False)
    assert sent(first)["kv_transfer_params"]["do_remote_decode"] is True
    assert [replica.in_flight for replica in station.registry.replicas()] == [1, 1], "both are taken at once"
    first.answer(200, FIRST)
    second = await halves.exchange(1)
    assert second.attempt.replica.id == "d"
    assert dict(second.attempt.headers)["authorization"] == "Bearer key-of-d"
    assert sent(second) == json.loads(BODY) | {"kv_transfer_params": PARAMS}
    assert [replica.in_flight for replica in station.registry.replicas()] == [0, 1], "each is given back at its end"
    second.head()
    second.send(EVENT + DONE)
    second.end()
    await halves.ended(reply)
    assert (reply.status, reply.answer) == (200, EVENT + DONE)
    assert dict(reply.headers)["x-pointsman-replica"] == "d"
    assert "prefill=p" in dict(reply.headers)["x-pointsman-reason"]
    assert station.outcomes == [Outcome.OK, Outcome.OK]
    assert halves.counts == {("p", "d", "ok"): 1}
    assert halves.told == [("answered", "p")]
    assert {replica_id: count for (replica_id, _), count in station.metrics.attempts.counts.items()} == {"p": 1, "d": 1}


async def test_both_hold_the_prompt_afterwards(halves: Halves) -> None:
    station = halves.open()
    reply = halves.ask()
    (await halves.exchange(0)).answer(200, FIRST)
    (await halves.exchange(1)).answer(200, b"{}")
    await halves.ended(reply)
    matched = station.placement.index.match(station.leases[0].demand.prompt.block_hashes)
    assert dict(matched) == {"p": 125, "d": 125}


async def test_a_tenant_is_charged_for_the_prompt_though_another_replica_computes_it(halves: Halves) -> None:
    station = halves.open()
    reply = halves.ask()
    first = await halves.exchange(0)
    lease = next(each for each in station.leases if each.replica.id == "d")
    assert lease.decision.uncached_tokens == NUM_TOKENS
    assert [each.prefilling_tokens for each in station.registry.replicas()] == [NUM_TOKENS, 0]
    first.answer(200, FIRST)
    (await halves.exchange(1)).answer(200, b"{}")
    await halves.ended(reply)


async def test_what_never_came_is_not_taken_to_be_in_the_cache(halves: Halves) -> None:
    station = halves.open()
    reply = halves.ask()
    (await halves.exchange(0)).answer(200, FIRST)
    await halves.exchange(1)
    reply.leave()
    await until(lambda: not station.left_over)
    lease = next(each for each in station.leases if each.replica.id == "d")
    assert lease.decision.matched_tokens == 0


FAULTS: list[Any] = [
    pytest.param(lambda first: first.fail(ConnectionCut("cut")), id="cut"),
    pytest.param(lambda first: first.answer(500, b"no"), id="500"),
    pytest.param(lambda first: first.answer(503, b"later"), id="503"),
    pytest.param(lambda first: first.answer(200, b'{"choices": []}'), id="no parameters"),
    pytest.param(lambda first: first.answer(200, b"<html>"), id="no JSON"),
]


@pytest.mark.parametrize("fault", FAULTS)
async def test_where_the_first_fails_the_second_does_both_and_the_client_sees_nothing(
    halves: Halves, fault: Any
) -> None:
    station = halves.open()
    reply = halves.ask()
    fault(await halves.exchange(0))
    second = await halves.exchange(1)
    assert (second.attempt.replica.id, second.attempt.body) == ("d", BODY)
    second.head()
    second.send(EVENT + DONE)
    second.end()
    await halves.ended(reply)
    assert (reply.status, reply.answer) == (200, EVENT + DONE)
    assert dict(reply.headers)["x-pointsman-reason"].endswith("; prefill_failed=p")
    assert station.outcomes == [Outcome.OK, Outcome.UPSTREAM_FAILED]
    assert halves.counts == {("p", "d", "alone"): 1}
    assert halves.told == [("failed", "p")]
    assert station.budget.saved < 10.0


async def test_a_first_that_cannot_be_reached_is_no_end_either(halves: Halves) -> None:
    halves.open()
    halves.upstream.refusing.add("p")
    reply = halves.ask()
    second = await halves.exchange(0)
    assert (second.attempt.replica.id, second.attempt.body) == ("d", BODY)
    second.answer(200, b"{}")
    assert (await halves.ended(reply)).status == 200
    assert halves.station.faults == {"p": 1}


async def test_after_a_failure_the_pair_is_not_tried_for_a_while(halves: Halves) -> None:
    halves.open()
    first_reply = halves.ask()
    (await halves.exchange(0)).answer(500, b"no")
    (await halves.exchange(1)).answer(200, b"{}")
    await halves.ended(first_reply)
    second_reply = halves.ask(id="again", body=b'{"model":"m","prompt":"Other"}')
    alone = await halves.exchange(2)
    assert alone.attempt.replica.id == "d"
    assert "kv_transfer_params" not in sent(alone)
    alone.answer(200, b"{}")
    await halves.ended(second_reply)


async def test_without_a_retry_to_spend_the_client_is_told(halves: Halves) -> None:
    station = halves.open(retries=0.0)
    reply = halves.ask()
    (await halves.exchange(0)).fail(ConnectionCut("cut"))
    await halves.ended(reply)
    assert reply.status == 502
    assert json.loads(reply.answer)["error"]["code"] == "handover_failed"
    assert station.outcomes == [Outcome.UPSTREAM_FAILED, Outcome.UPSTREAM_FAILED]
    assert station.faults == {"p": 1}, "who was to answer is not to blame"
    assert halves.counts == {("p", "d", "failed"): 1}


async def test_operators_are_told_why_a_prompt_was_not_computed(
    halves: Halves, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", logger="router")  # a command that another test ran may have set another
    halves.open()
    reply = halves.ask()
    (await halves.exchange(0)).answer(400, b'{"error": {"message": "this engine hands out no KV"}}')
    (await halves.exchange(1)).answer(200, b"{}")
    await halves.ended(reply)
    assert [each for each in caplog.messages if each.startswith("p computed no prompt for d")]
    assert "this engine hands out no KV" in caplog.text


async def test_what_is_wrong_with_the_request_is_said_in_the_replicas_words(halves: Halves) -> None:
    station = halves.open(retries=0.0)
    reply = halves.ask()
    (await halves.exchange(0)).answer(400, b'{"error": {"message": "top_k is odd"}}')
    await halves.ended(reply)
    assert (reply.status, json.loads(reply.answer)["error"]["message"]) == (400, "top_k is odd")
    assert station.faults == {}


async def test_where_the_second_fails_another_replica_is_tried(halves: Halves) -> None:
    station = halves.open(names="pde")
    reply = halves.ask()
    (await halves.exchange(0)).answer(200, FIRST)
    failed = await halves.exchange(1)
    failed.fail(ConnectionCut("cut"))
    again = await halves.exchange(2)
    while again.attempt.replica.id == "p":
        again.answer(200, FIRST)
        again = await halves.exchange(3)
    assert again.attempt.replica.id not in ("p", failed.attempt.replica.id)
    again.answer(200, b"{}")
    assert (await halves.ended(reply)).status == 200
    assert all(lease.outcome is not None for lease in station.leases)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("when", ["connecting", "prefill", "decode", "stream"])
async def test_a_client_that_leaves_ends_both_wherever_they_stand(halves: Halves, engine: str, when: str) -> None:
    station = halves.open(engine)
    if when == "connecting":
        halves.upstream.may_connect.clear()
    reply = halves.ask()
    if when == "connecting":
        await until(lambda: halves.upstream.num_connecting)
    else:
        await halves.exchange(0)
    if when in ("decode", "stream"):
        halves.upstream.exchanges[0].answer(200, FIRST)
        await halves.exchange(1)
    if when == "stream":
        halves.upstream.exchanges[1].head()
        halves.upstream.exchanges[1].send(EVENT)
    reply.leave()
    await until(lambda: not halves.station.left_over)
    assert halves.upstream.num_live == 0
    assert Outcome.CLIENT_GONE in station.outcomes
    assert station.faults == {}
    halves.upstream.may_connect.set()


async def test_a_slow_reader_pauses_the_second_alone(halves: Halves) -> None:
    halves.open()
    reply = halves.ask()
    first = await halves.exchange(0)
    assert reply.flow is not None
    reply.flow.pause()
    assert not first.is_paused
    first.answer(200, FIRST)
    second = await halves.exchange(1)
    await until(lambda: second.is_paused)
    reply.flow.resume()
    assert not second.is_paused
    second.answer(200, b"{}")
    await halves.ended(reply)


async def test_sglangs_halves_are_asked_at_once_and_the_second_answers(halves: Halves) -> None:
    station = halves.open("sglang")
    reply = halves.ask()
    await halves.exchange(1)
    asked = {each.attempt.replica.id: each for each in halves.upstream.exchanges}
    first, second = asked["p"], asked["d"]
    assert sent(first) == sent(second)
    assert (sent(first)["bootstrap_host"], sent(first)["bootstrap_port"]) == ("p", 8998)
    assert isinstance(sent(first)["bootstrap_room"], int)
    assert dict(first.attempt.headers)["authorization"] == "Bearer key-of-p"
    first.head()
    first.send(b'data: {"choices":[{"text":"not for the client"}]}\n\ndata: [DONE]\n\n')
    first.end()
    assert [replica.in_flight for replica in station.registry.replicas()] == [0, 1]
    second.head()
    second.send(EVENT + DONE)
    second.end()
    await halves.ended(reply)
    assert (reply.status, reply.answer) == (200, EVENT + DONE)
    assert station.outcomes == [Outcome.OK, Outcome.OK]
    assert halves.counts == {("p", "d", "ok"): 1}


async def test_where_sglangs_first_fails_both_are_tried_elsewhere(halves: Halves) -> None:
    station = halves.open("sglang", names="pqde")
    reply = halves.ask()
    await halves.exchange(1)
    firsts = [each for each in halves.upstream.exchanges if each.attempt.replica.spec.role == "prefill"]
    firsts[0].answer(500, b"no")
    await halves.exchange(3)
    assert halves.upstream.exchanges[0].sink is None
    assert halves.upstream.exchanges[1].sink is None
    again = {each.attempt.replica.spec.role: each for each in halves.upstream.exchanges[2:]}
    assert again["prefill"].attempt.replica is not firsts[0].attempt.replica
    again["prefill"].answer(200, b"{}")
    again["decode"].answer(200, b"{}")
    assert (await halves.ended(reply)).status == 200
    assert list(station.faults) == [firsts[0].attempt.replica.id]


async def test_what_the_second_has_begun_to_answer_needs_no_first(halves: Halves) -> None:
    halves.open("sglang")
    reply = halves.ask()
    await halves.exchange(1)
    asked = {each.attempt.replica.id: each for each in halves.upstream.exchanges}
    asked["d"].head()
    asked["d"].send(EVENT)
    asked["p"].fail(ConnectionCut("cut"))
    asked["d"].send(DONE)
    asked["d"].end()
    await halves.ended(reply)
    assert reply.answer == EVENT + DONE


@pytest.mark.parametrize("is_stream", [False, True])
async def test_speeds_learn_nothing_from_an_answer_whose_prompt_came_from_elsewhere(
    halves: Halves, is_stream: bool
) -> None:
    station = halves.open()
    learned = {name: station.member(name).speeds.squares for name in "pd"}
    reply = halves.ask(is_stream=is_stream)
    first = await halves.exchange(0)
    station.clock.now += 5.0
    first.answer(200, FIRST)
    second = await halves.exchange(1)
    station.clock.now += 0.5
    usage = {"usage": {"prompt_tokens": NUM_TOKENS, "completion_tokens": 40}}
    if is_stream:
        second.head()
        second.send(EVENT)
        second.send(EVENT + DONE)
        second.end()
    else:
        second.answer(200, json.dumps(usage).encode())
    await halves.ended(reply)
    assert learned["d"].num_samples == 0
    if not is_stream:
        assert station.leases[0].output_tokens == 40, "lengths are learned all the same"


async def test_how_long_kv_takes_is_learned_from_first_tokens(halves: Halves) -> None:
    station = halves.open()
    before = halves.moving.expected_s("d", 2000, station.clock())
    reply = halves.ask()
    (await halves.exchange(0)).answer(200, FIRST)
    second = await halves.exchange(1)
    station.clock.now += 2.0
    second.head()
    second.send(EVENT + DONE)
    second.end()
    await halves.ended(reply)
    assert halves.moving.expected_s("d", 2000, station.clock()) > before


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_happens_each_lease_is_released_once_and_nothing_is_left(halves: Halves, seed: int) -> None:
    """The invariant: open leases = requests in flight, and zero when all are gone."""
    dice = Random(seed)
    station = halves.open(dice.choice(["vllm", "sglang", "pointsman"]), names="pqde")
    replies: list[FakeReply] = []
    for number in range(30):
        replies.append(halves.ask(id=f"r{number}", body=json.dumps({"model": "m", "prompt": f"{number}"}).encode()))
        await turns(dice.randrange(4))
        for exchange in [each for each in halves.upstream.exchanges if each.sink is not None]:
            _happen(dice, exchange)
        if dice.random() < 0.2:
            dice.choice(replies).leave()
        station.tick(dice.random())
        open_leases = sum(lease.outcome is None for lease in station.leases)
        assert sum(replica.in_flight for replica in station.registry.replicas()) == open_leases
    await until(lambda: all(reply.flow is not None for reply in replies))
    for reply in replies:
        reply.leave()
    await until(lambda: not station.left_over)


def _happen(dice: Random, exchange: FakeExchange) -> None:
    what = dice.randrange(6)
    if what == 0:
        exchange.fail(ConnectionCut("cut"))
    elif what == 1:
        exchange.answer(500, b"no")
    elif what == 2:
        exchange.answer(200, FIRST)
    elif what == 3 and not exchange.has_head:
        exchange.head()
        exchange.send(EVENT)
