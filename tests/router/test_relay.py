"""The relay alone, between a reply and an attempt in memory. What it owes on the wire is in `tests/contracts/`."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from random import Random

import pytest

from router.core import Attempt, Decision, Lease, Outcome
from router.errand import Errand, State, own_task
from router.errors import (
    BadAnswer,
    ClientStalled,
    ConnectFailed,
    ConnectionCut,
    Draining,
    Expired,
    PointsmanError,
    UnknownModel,
    UpstreamStatus,
    UpstreamTimeout,
)
from router.relay import Phase, Relay, RelayTimes
from tests.fakes import EVENT_STREAM, JSON, FakeExchange, FakeReply, FakeUpstream, turns
from tests.router.nouns import FakeClock, make_demand, make_replica, make_request

EVENT = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
USAGE = b'"usage":{"prompt_tokens":7,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}'


@dataclass(eq=False)
class Desk:
    """A relay at work. `carry` starts an attempt in an errand of its own, as each request has one."""

    is_stream: bool = True
    clock: FakeClock = field(default_factory=FakeClock)
    reply: FakeReply = field(default_factory=FakeReply)
    upstream: FakeUpstream = field(default_factory=FakeUpstream)
    started: list[Lease] = field(default_factory=list)
    errand: Errand | None = None

    async def open(self) -> "Desk":
        made: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.wanted: asyncio.Queue[str] = asyncio.Queue()
        self.errand = Errand(self._serve(made)).step()
        await made
        return self

    async def _serve(self, made: "asyncio.Future[None]") -> None:
        """The relay belongs to this errand: a client that leaves cancels it."""
        await own_task()
        request = make_request(arrived=self.clock(), deadline=self.clock() + 600.0, is_stream=self.is_stream)
        self.relay = Relay(request, self.reply, self.clock, RelayTimes(10.0, 15.0))
        self.relay.errand = self.errand
        made.set_result(None)
        while True:
            name = await self.wanted.get()
            self.error: PointsmanError | None = None
            try:
                await self.relay.carry(self.upstream, self.attempt(name), self.lease(name))
            except PointsmanError as error:
                self.error = error

    async def carry(self, name: str = "a") -> FakeExchange:
        """Start an attempt; the exchange on which the test plays the replica."""
        self.wanted.put_nowait(name)
        await turns()
        return self.upstream.exchanges[-1]

    def attempt(self, name: str) -> Attempt:
        return Attempt(make_replica(name), "r", "/v1/chat/completions", (), b"{}", 3.0, 30.0, 5.0)

    def lease(self, name: str) -> Lease:
        decision = Decision(make_replica(name), "test", 16, 48, 0.25, {})
        return Lease(make_demand(), decision, self.clock(), self.started.append, lambda _: None)

    def tick(self, seconds: float) -> None:
        self.clock.now += seconds
        self.relay.tick(self.clock.now)


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    desk = await Desk().open()
    yield desk
    await close(desk)


@pytest.fixture
async def whole() -> AsyncIterator[Desk]:
    """A desk whose client did not ask for a stream."""
    desk = await Desk(is_stream=False).open()
    yield desk
    await close(desk)


async def close(desk: Desk) -> None:
    assert desk.errand is not None
    desk.errand.cancel()
    await desk.errand.wait()


async def test_an_event_is_written_in_the_call_that_brings_it(desk: Desk) -> None:
    """A first token that is held back, for a timer or for the next one, is late for nothing."""
    exchange = await desk.carry()
    exchange.head()
    for number in range(1, 4):
        exchange.send(EVENT)
        assert desk.reply.payloads == [EVENT] * number


async def test_the_head_waits_for_the_first_whole_event(desk: Desk) -> None:
    exchange = await desk.carry()
    exchange.head()
    exchange.send(EVENT[:-1])
    assert (desk.reply.status, desk.relay.phase) == (None, Phase.SILENT)
    exchange.send(EVENT[-1:])
    assert (desk.reply.status, desk.relay.phase) == (200, Phase.FLOWING)


async def test_who_waits_for_a_place_is_let_in_once_the_first_byte_is_on_its_way(desk: Desk) -> None:
    """To place another request is work that this client need not wait for."""
    exchange = await desk.carry()
    lease, num_written = desk.relay.lease, list[int]()
    assert lease is not None
    lease.on_started = lambda _: num_written.append(len(desk.reply.payloads))
    exchange.head()
    exchange.send(EVENT)
    assert num_written == [1]


async def test_a_lease_that_its_reply_has_ended_is_not_started_any_more(desk: Desk) -> None:
    exchange = await desk.carry()
    assert desk.relay.lease is not None
    exchange.head()
    desk.relay.lease.release(Outcome.CLIENT_GONE)
    exchange.send(EVENT)
    assert desk.started == []


async def test_an_answer_without_a_body_still_has_its_head(whole: Desk) -> None:
    exchange = await whole.carry()
    exchange.head(200, JSON)
    exchange.end()
    assert (whole.reply.status, whole.reply.outcome, whole.reply.is_complete) == (200, Outcome.OK, True)
    assert whole.relay.phase is Phase.ENDED


async def test_the_lease_starts_with_the_first_content_byte_of_each_attempt(desk: Desk) -> None:
    first = await desk.carry("a")
    first.head()
    assert desk.started == []
    first.send(EVENT[:5])
    first.send(EVENT[5:9])
    assert [lease.replica.id for lease in desk.started] == ["a"]
    first.fail(ConnectionCut("cut"))
    second = await desk.carry("b")
    assert desk.relay.first_byte_at is None
    second.head()
    second.send(EVENT)
    assert [lease.replica.id for lease in desk.started] == ["a", "b"]
    assert desk.reply.answer == EVENT


async def test_an_error_status_raises_with_the_replicas_words_and_wait(desk: Desk) -> None:
    exchange = await desk.carry()
    exchange.answer(429, b'{"error":"busy"}', (("retry-after", "9"),))
    await turns()
    assert isinstance(desk.error, UpstreamStatus)
    assert (desk.error.status, desk.error.retry_after_s, desk.error.retryable) == (429, 9.0, True)
    assert b'"message":"busy"' in desk.error.body
    assert desk.reply.status is None, "another replica may do better"


@pytest.mark.parametrize("wait", ["soon", "-1", "Wed, 21 Oct 2026 07:28:00 GMT", "1.5"])
async def test_a_retry_after_that_is_no_count_of_seconds_is_none(desk: Desk, wait: str) -> None:
    exchange = await desk.carry()
    exchange.answer(503, b"", (("retry-after", wait),))
    await turns()
    assert isinstance(desk.error, UpstreamStatus)
    assert desk.error.retry_after_s is None


async def test_usage_and_times_are_read_from_a_stream(desk: Desk) -> None:
    exchange = await desk.carry()
    desk.clock.now += 2.0
    exchange.head()
    exchange.send(EVENT)
    desk.clock.now += 3.0
    exchange.send(b'data: {"choices":[],' + USAGE + b"}\n\n" + DONE)
    exchange.end()
    usage = desk.relay.usage
    assert (usage.prompt_tokens, usage.output_tokens, usage.cached_tokens) == (7, 3, 4)
    assert (usage.first_token_s, usage.total_s) == (2.0, 5.0)


async def test_usage_is_read_from_the_end_of_a_whole_answer_however_it_is_cut(whole: Desk) -> None:
    exchange = await whole.carry()
    exchange.head(200, JSON)
    body = b'{"choices":[' + b'"x",' * 50_000 + b'"y"],' + USAGE + b"}"
    for start in range(0, len(body), 997):
        exchange.send(body[start : start + 997])
    exchange.end()
    assert whole.reply.answer == body
    assert whole.relay.usage.output_tokens == 3


async def test_a_client_that_leaves_detaches_the_attempt_before_the_call_returns(desk: Desk) -> None:
    exchange = await desk.carry()
    exchange.head()
    exchange.send(EVENT)
    desk.relay.gone()
    assert exchange.is_aborted
    assert desk.relay.phase is Phase.ENDED
    desk.relay.gone()
    await turns()
    assert desk.errand is not None
    assert desk.errand.state is State.ENDED


async def test_a_client_that_leaves_while_connecting_cancels_that(desk: Desk) -> None:
    desk.upstream.may_connect.clear()
    desk.wanted.put_nowait("a")
    await turns()
    assert desk.upstream.num_connecting == 1
    desk.relay.gone()
    await turns()
    assert desk.upstream.num_connecting == 0
    assert desk.upstream.exchanges == []


async def test_nothing_is_said_to_a_client_that_has_left(desk: Desk) -> None:
    await desk.carry()
    desk.relay.gone()
    desk.relay.fail(Draining("stopping"))
    desk.tick(1000.0)
    assert (desk.reply.status, desk.reply.payloads, desk.reply.outcome) == (None, [], None)


async def test_a_client_that_was_slow_before_the_attempt_began_pauses_it(desk: Desk) -> None:
    desk.upstream.may_connect.clear()
    desk.wanted.put_nowait("a")
    await turns()
    desk.relay.pause()
    desk.upstream.may_connect.set()
    await turns()
    assert desk.upstream.exchanges[0].is_paused
    desk.relay.resume()
    assert not desk.upstream.exchanges[0].is_paused


async def test_the_time_that_a_client_did_not_read_is_not_the_replicas_silence(desk: Desk) -> None:
    exchange = await desk.carry()
    exchange.head()
    exchange.send(EVENT)
    desk.relay.pause()
    desk.tick(4.0)
    desk.relay.resume()
    desk.tick(4.0)
    assert not exchange.is_aborted
    desk.tick(2.0)
    assert exchange.is_aborted


async def test_an_attempt_on_an_idle_connection_waits_for_nothing(desk: Desk) -> None:
    desk.upstream.has_idle = True
    desk.upstream.may_connect.clear()
    exchange = await desk.carry()
    exchange.head()
    exchange.send(EVENT)
    assert (desk.reply.answer, desk.upstream.num_connecting) == (EVENT, 0)


async def test_a_client_that_was_slow_before_pauses_an_attempt_on_an_idle_connection(desk: Desk) -> None:
    desk.upstream.has_idle = True
    desk.relay.pause()
    assert (await desk.carry()).is_paused


async def test_while_connecting_the_connect_timeout_rules_and_no_other(desk: Desk) -> None:
    desk.upstream.may_connect.clear()
    desk.wanted.put_nowait("a")
    await turns()
    desk.tick(1000.0)
    desk.upstream.may_connect.set()
    exchange = await _latest(desk)
    assert not exchange.is_aborted


@pytest.mark.parametrize(
    ("error", "has_begun", "outcome"),
    [
        (UnknownModel("no"), False, Outcome.REJECTED),
        (Draining("no"), False, Outcome.REJECTED),
        (Expired("late"), True, Outcome.EXPIRED),
        (ClientStalled("slow"), True, Outcome.CLIENT_GONE),
        (ConnectFailed("no"), False, Outcome.UPSTREAM_FAILED),
        (UpstreamTimeout("silent"), True, Outcome.CUT_MID_STREAM),
        (UpstreamStatus(400, b"{}"), False, Outcome.REJECTED),
        (UpstreamStatus(429, b"{}"), False, Outcome.UPSTREAM_FAILED),
        (UpstreamStatus(500, b"{}"), False, Outcome.UPSTREAM_FAILED),
    ],
)
async def test_an_error_is_an_outcome(desk: Desk, error: PointsmanError, has_begun: bool, outcome: Outcome) -> None:
    desk.relay.first_byte_at = 1.0 if has_begun else None
    assert desk.relay.outcome_of(error) is outcome


async def test_a_reply_is_ended_once_whatever_fails_later(desk: Desk) -> None:
    desk.relay.fail(UnknownModel("no", param="model"))
    desk.relay.fail(Draining("stopping"))
    assert (desk.reply.status, desk.reply.outcome) == (404, Outcome.REJECTED)
    assert b'"param":"model"' in desk.reply.answer


async def test_the_state_shows_in_the_repr(desk: Desk) -> None:
    assert repr(desk.relay) == "<Relay r SILENT>"
    exchange = await desk.carry("a")
    exchange.head()
    exchange.send(EVENT)
    assert repr(desk.relay) == "<Relay r FLOWING on a>"
    desk.relay.pause()
    assert repr(desk.relay) == "<Relay r FLOWING on a, its client reads slowly>"


@pytest.mark.parametrize("seed", range(40))
async def test_whatever_happens_the_reply_gets_a_head_then_payloads_then_one_end(seed: int) -> None:
    """`FakeReply` asserts the order of calls; here everything happens to a relay, in any order."""
    random = Random(seed)
    desk = await Desk(is_stream=random.random() < 0.7).open()
    for number in range(6):
        if desk.relay.phase not in (Phase.SILENT, Phase.HELD):
            break
        exchange = await desk.carry(f"r{number}")
        for _ in range(random.randrange(12)):
            _happen(random, desk, exchange)
            await turns(random.randrange(2))
        exchange.fail(BadAnswer("bad"))
        await turns()
    desk.relay.fail(desk.error or Expired("late"))
    assert desk.relay.phase is Phase.ENDED
    assert desk.reply.outcome is not None
    assert desk.reply.status is not None
    if desk.reply.is_complete and ("content-type", "application/json") not in desk.reply.headers:
        assert DONE in desk.reply.answer
        assert EVENT[:9] + b'data: {"error"' not in desk.reply.answer, "half an event before the error"
    await close(desk)


def _happen(random: Random, desk: Desk, exchange: FakeExchange) -> None:
    if not exchange.has_head:
        exchange.head(random.choice((200, 200, 200, 500)), EVENT_STREAM if desk.is_stream else JSON)
    random.choice(
        (
            lambda: exchange.send(EVENT),
            lambda: exchange.send(EVENT[:9]),
            lambda: exchange.send(DONE) if random.random() < 0.2 else None,
            lambda: exchange.end() if random.random() < 0.3 else None,
            lambda: exchange.fail(ConnectionCut("cut")) if random.random() < 0.3 else None,
            desk.relay.pause,
            desk.relay.resume,
            lambda: desk.tick(random.choice((0.1, 3.0, 11.0, 16.0))),
        )
    )()


async def _latest(desk: Desk) -> FakeExchange:
    await turns()
    return desk.upstream.exchanges[-1]
