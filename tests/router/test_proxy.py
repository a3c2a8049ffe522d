"""The steps of one request, with clients and replicas in memory. What goes over the wire is in `tests/contracts/`."""

import asyncio
import gc
import json
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from router.admission.records import Book, create_key
from router.choice import View, Weighed
from router.core import Band, Decision, Demand, Lease, Outcome, Prompt, Request, Surface
from router.errand import State
from router.errors import ConnectionCut
from router.relay import Relay
from tests.fakes import EVENT_STREAM, FakeExchange, FakeReply, FakeUpstream, Station, specs_of, turns, until
from tests.router.nouns import make_request

EVENT = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


@dataclass(eq=False)
class House:
    """A station over replicas `a` and `b` in memory, and what its clients were told."""

    upstream: FakeUpstream = field(default_factory=FakeUpstream)
    tasks: "list[asyncio.Task[None]]" = field(default_factory=list)

    def open(self, names: Sequence[str] = ("a", "b"), **settings: float) -> Station:
        self.station = Station(self.upstream, specs_of(names), **settings)  # type: ignore[arg-type]
        return self.station

    def ask(self, **fields: object) -> FakeReply:
        reply, now = FakeReply(), self.station.clock()
        request = make_request(**{"arrived": now, "deadline": now + 600.0, **fields})  # type: ignore[arg-type]
        self.tasks.append(asyncio.ensure_future(self.station.proxy.handle(request, reply)))
        return reply

    async def exchange(self, number: int = 0) -> FakeExchange:
        await until(lambda: len(self.upstream.exchanges) > number)
        return self.upstream.exchanges[number]

    async def told(self, reply: FakeReply) -> FakeReply:
        await until(lambda: reply.outcome is not None)
        await turns()
        return reply


@pytest.fixture
async def house() -> AsyncIterator[House]:
    house = House()
    yield house
    for task in house.tasks:
        task.cancel()
    await asyncio.gather(*house.tasks, return_exceptions=True)
    assert house.station.left_over == {}
    assert house.upstream.num_live == 0


async def test_an_attempt_says_all_that_goes_over_the_wire(house: House) -> None:
    house.open(connect_timeout_s=1.0, first_byte_timeout_s=2.0, idle_timeout_s=4.0)
    house.ask(id="my-id", surface=Surface.COMPLETIONS, body=b'{"x":1}', headers=(("x-other", "kept"),))
    attempt = (await house.exchange()).attempt
    assert (attempt.path, attempt.body) == ("/v1/completions", b'{"x":1}')
    assert (attempt.connect_timeout_s, attempt.first_byte_timeout_s, attempt.idle_timeout_s) == (1.0, 2.0, 4.0)
    assert attempt.request_id == "my-id"
    assert attempt.headers == (("x-other", "kept"), ("content-type", "application/json"))


async def test_the_fault_of_one_request_at_the_clock_ends_that_one_alone(
    house: House, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: an error in a heartbeat ended the router."""
    station = house.open()
    broken, whole = house.ask(id="broken"), house.ask(id="whole")
    await house.exchange(1)

    def tick(relay: Relay, _: float) -> None:
        if relay.request.id == "broken":
            raise KeyError(relay)

    monkeypatch.setattr(Relay, "tick", tick)
    await station.proxy.tick(station.clock())
    assert (await house.told(broken)).outcome is Outcome.REJECTED
    assert (whole.outcome, len(station.relays)) == (None, 1)
    assert "the router failed to serve a request" in caplog.text


async def test_what_a_request_has_left_does_not_wait_for_the_collector(house: House) -> None:
    """The fault: a circle of thirty objects a request, bodies among them, that fill memory until a collection stops
    the loop."""
    station = house.open()
    house.upstream.has_idle = True
    for _ in range(2):  # what is made once is made by the first
        gc.collect()
        gc.disable()
        try:
            reply, now = FakeReply(), station.clock()
            errand = station.proxy.begin(make_request(arrived=now, deadline=now + 600.0), reply)
            house.upstream.exchanges.pop().answer(200, b"{}")
            assert (errand.state, reply.outcome) == (State.ENDED, Outcome.OK)
            station.leases.clear()
            reply.flow = None  # as replies of transports let go at their end
            del reply, errand
            num_left = gc.collect()
        finally:
            gc.enable()
    assert num_left == 0


async def test_a_request_passes_the_gate_before_any_work_is_done(house: House) -> None:
    station = house.open(max_open_requests=1)
    first = house.ask()
    await house.exchange()
    station.prompts.may_read.clear()
    refused = await house.told(house.ask())
    assert (refused.status, refused.outcome) == (429, Outcome.REJECTED)
    (await house.exchange()).answer(200, b"{}")
    assert (await house.told(first)).outcome is Outcome.OK


async def test_a_request_leaves_the_gate_with_its_end_and_not_before(house: House) -> None:
    station = house.open()
    reply = house.ask(is_stream=True)
    exchange = await house.exchange()
    exchange.head()
    exchange.send(EVENT)
    assert (station.gate.num_open, len(station.relays)) == (1, 1)
    exchange.send(DONE)
    exchange.end()
    await house.told(reply)
    assert (station.gate.num_open, len(station.relays)) == (0, 0)


async def test_a_prompt_of_exact_length_over_the_context_is_refused_and_a_guess_is_not(house: House) -> None:
    station = house.open()
    station.registry.pools()[0].max_model_len = 64
    refused = await house.told(house.ask(messages=[{"role": "user"}]))
    assert (refused.status, station.leases) == (400, [])
    assert b'"param":"messages"' in refused.answer
    assert b'"param":"prompt"' in (await house.told(house.ask(surface=Surface.COMPLETIONS))).answer

    class Guesses:
        async def read(self, request: Request, *_: object) -> Prompt:
            return Prompt(1000, (), 16, is_exact=False)

    station.proxy.prompts = Guesses()
    reply = house.ask()
    (await house.exchange()).answer(200, b"{}")
    assert (await house.told(reply)).status == 200


async def test_our_priority_is_cut_out_of_the_body_and_nothing_else(house: House) -> None:
    house.open()
    house.ask(body=b'{"model":"m","priority":5,"z":1.50}', priority=5)
    house.ask(body=b'{"model":"m","priority":0}', priority=0)
    assert (await house.exchange(0)).attempt.body == b'{"model":"m","z":1.50}'
    assert (await house.exchange(1)).attempt.body == b'{"model":"m","priority":0}', "no engine refuses 0"


async def test_each_replica_is_sent_its_own_key(house: House) -> None:
    station = house.open()
    for replica in station.registry.replicas():
        replica.spec = replace(replica.spec, api_key=f"key-of-{replica.id}")
    house.upstream.refusing = {"a"}
    station.member("b").replica.foreign_requests = 9
    house.ask(headers=(("authorization", "Bearer of-the-client"),))
    attempt = (await house.exchange()).attempt
    assert attempt.replica.id == "b"
    assert [value for name, value in attempt.headers if name == "authorization"] == ["Bearer key-of-b"]


async def test_every_place_is_asked_for_without_the_replicas_that_failed(house: House) -> None:
    station = house.open(["a", "b", "c", "d"], max_attempts=4)
    reply = house.ask()
    for number in range(3):
        (await house.exchange(number)).fail(ConnectionCut("cut"))
    (await house.exchange(3)).answer(200, b"{}")
    await house.told(reply)
    tried = [lease.demand.tried for lease in station.leases]
    replicas = [lease.replica.id for lease in station.leases]
    assert tried == [frozenset(replicas[:number]) for number in range(4)]
    assert len(set(replicas)) == 4
    assert station.metrics.retries.counts == {("replica_connection_lost",): 3}


async def test_a_request_earns_its_part_of_a_retry_once(house: House) -> None:
    station = house.open(retries=1.0)
    reply = house.ask()
    (await house.exchange()).fail(ConnectionCut("cut"))
    (await house.exchange(1)).answer(200, b"{}")
    await house.told(reply)
    assert station.budget.saved == pytest.approx(0.2)


async def test_an_attempt_that_no_other_replica_could_follow_costs_no_budget(house: House) -> None:
    station = house.open(["a"], retries=1.0)
    reply = house.ask()
    (await house.exchange()).fail(ConnectionCut("cut"))
    assert (await house.told(reply)).status == 502
    assert station.budget.saved == pytest.approx(1.2)


async def test_a_deadline_that_passes_between_two_attempts_ends_the_request(house: House) -> None:
    station = house.open()
    reply = house.ask()
    exchange = await house.exchange()
    station.clock.now += 601.0
    exchange.fail(ConnectionCut("cut"))
    assert ((await house.told(reply)).status, reply.outcome) == (504, Outcome.EXPIRED)
    assert len(house.upstream.exchanges) == 1


async def test_a_place_that_is_given_back_goes_to_the_next_in_line(house: House) -> None:
    house.open(["a"], max_in_flight=1)
    first, second = house.ask(), house.ask()
    (await house.exchange()).answer(200, b"1")
    (await house.exchange(1)).answer(200, b"2")
    assert ((await house.told(first)).answer, (await house.told(second)).answer) == (b"1", b"2")


async def test_a_stopping_router_tells_its_clients_and_blames_nobody(house: House) -> None:
    station = house.open()
    silent, flowing = house.ask(), house.ask(is_stream=True)
    exchange = await house.exchange(1)
    exchange.head()
    exchange.send(EVENT)
    for task in house.tasks:
        task.cancel()
    assert ((await house.told(silent)).status, dict(silent.headers)["retry-after"]) == (503, "1")
    assert (await house.told(flowing)).answer.endswith(DONE)
    assert b'"draining"' in flowing.answer
    assert station.faults == {}
    assert {outcome for _, outcome, _ in station.metrics.requests.counts} == {"rejected"}
    assert all(task.cancelled() for task in house.tasks), "a cancel is passed on"


async def test_a_client_that_leaves_is_counted_as_gone(house: House) -> None:
    station = house.open()
    reply = house.ask()
    await house.exchange()
    reply.leave()
    await until(lambda: not station.left_over)
    assert station.metrics.requests.counts == {("m", "client_gone", "0"): 1}
    assert station.metrics.attempts.counts == {(station.leases[0].replica.id, "client_gone"): 1}


async def test_a_fault_of_our_own_is_a_500_and_a_traceback_in_the_log(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def about(self) -> Mapping[str, object]:
            return {}

        def explain(self, demand: Demand, view: View) -> Sequence[Weighed]:
            return ()

        def placed(self, lease: Lease) -> None: ...

        def decide(self, demand: Demand, view: View) -> Decision | None:
            raise RuntimeError("a plug-in failed")

    station = house.open()
    station.placement.policy = Broken()
    with caplog.at_level(logging.ERROR):
        reply = await house.told(house.ask())
    assert (reply.status, reply.outcome) == (500, Outcome.REJECTED)
    assert b"plug-in" not in reply.answer
    [record] = caplog.records
    assert record.exc_info is not None


async def test_who_answered_and_why_is_counted_by_model_and_replica(house: House) -> None:
    station = house.open()
    await house.told(house.ask(model="nobody knows this one"))
    reply = house.ask()
    (await house.exchange()).answer(200, b'{"usage":{"prompt_tokens":5,"completion_tokens":2}}')
    await house.told(reply)
    replica = station.leases[0].replica.id
    assert station.metrics.requests.counts == {("none", "rejected", "404"): 1, ("m", "ok", "200"): 1}
    assert station.metrics.attempts.counts == {(replica, "ok"): 1}
    assert station.metrics.tokens.counts == {("m", "prompt"): 5, ("m", "output"): 2}


USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}\n\n'


@pytest.mark.parametrize("is_asked_for", [False, True])
async def test_what_a_limit_counts_is_asked_for_and_told_to_who_asked(house: House, is_asked_for: bool) -> None:
    station = house.open()
    book, _, token = create_key(Book(), {"name": "alice", "limits": {"tokens_per_minute": 1000}}, 0.0)
    station.gate.callers.replace(book, station.clock())
    body = b'{"model":"m","stream":true,"temperature":1.50}'
    reply = house.ask(
        is_stream=True, body=body, tells_usage=is_asked_for, headers=(("authorization", f"Bearer {token}"),)
    )
    exchange = await house.exchange()
    asks = b',"stream_options":{"include_usage":true}}'
    assert exchange.attempt.body == (body if is_asked_for else body[:-1] + asks)
    exchange.head()
    exchange.send(EVENT + USAGE[:20])
    exchange.send(USAGE[20:] + DONE)
    exchange.end()
    assert (await house.told(reply)).answer == EVENT + (USAGE if is_asked_for else b"") + DONE
    (account,) = station.gate.callers.accounts.values()
    assert dict(account.headers(station.clock()))["x-ratelimit-remaining-tokens"] == "990"


async def test_a_stream_without_a_limit_is_sent_as_it_came(house: House) -> None:
    house.open()
    house.ask(is_stream=True, body=b'{"model":"m","stream":true}')
    assert (await house.exchange()).attempt.body == b'{"model":"m","stream":true}'


@pytest.mark.parametrize(("band", "tier"), [(Band.HIGH, "priority"), (None, "default"), (Band.LOW, "flex")])
async def test_who_names_a_service_tier_is_told_the_one_in_which_it_was_served(
    house: House, band: Band | None, tier: str
) -> None:
    house.open()
    reply = house.ask(names_tier=True, band=band)
    (await house.exchange()).answer(200, b'{"id": "c", "service_tier": null}')
    await house.told(reply)
    assert json.loads(reply.answer) == {"id": "c", "service_tier": tier}
    assert dict(reply.headers)["content-length"] == str(len(reply.answer))
    stream = house.ask(names_tier=True, band=band, is_stream=True)
    (await house.exchange(1)).answer(200, EVENT + DONE, EVENT_STREAM)
    await house.told(stream)
    assert stream.answer == b'data: {"service_tier":"%s",' % tier.encode() + EVENT[7:] + DONE


async def test_who_names_none_gets_the_very_bytes(house: House) -> None:
    house.open()
    reply = house.ask(band=Band.LOW)
    (await house.exchange()).answer(200, b'{"id": "c", "service_tier": null}')
    await house.told(reply)
    assert reply.answer == b'{"id": "c", "service_tier": null}'
