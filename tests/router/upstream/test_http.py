import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from router.errors import ConnectFailed, ConnectionCut
from router.spec import ReplicaSpec
from router.upstream.exchange import HttpExchange
from router.upstream.http import IDLE_S, HttpUpstream
from tests.contracts.hostile import (
    Behaviour,
    Call,
    HostileReplica,
    Script,
    absent_replica,
    answers,
    closes,
    hostile_replica,
    says,
)
from tests.fakes import turns, until
from tests.router.nouns import FakeClock
from tests.router.upstream.fakes import FakeSink, make_attempt


class Rig:
    """An upstream, and one replica that answers as its script says."""

    def __init__(self, replica: HostileReplica, script: Script) -> None:
        self.clock, self.replica, self.script = FakeClock(), replica, script
        self.upstream = HttpUpstream(self.clock, max_idle=3)

    async def ask(self) -> FakeSink:
        """Send an attempt; its answer comes to the sink."""
        sink = FakeSink()
        await self.upstream.open(make_attempt(self.replica.spec), sink)
        return sink

    async def exchange(self) -> FakeSink:
        """Send an attempt and hear its answer to the end."""
        sink = await self.ask()
        await ended(sink)
        return sink

    async def hold(self, number: int) -> list[Call]:
        """That many attempts at once, none of them answered yet."""
        first = len(self.script.calls)
        for _ in range(number):
            await self.ask()
        await self.script.call(first + number - 1)
        return self.script.calls[first:]

    async def idle(self, number: int) -> None:
        await until(lambda: self.num_idle == number)

    @property
    def num_idle(self) -> int:
        return sum(map(len, self.upstream._idle.values()))

    @property
    def counts(self) -> str:
        return repr(self.upstream)


async def ended(sink: FakeSink) -> None:
    await until(lambda: sink.ends)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    script = Script()
    async with hostile_replica(script) as replica:
        rig = Rig(replica, script)
        yield rig
        await rig.upstream.close()
        await until(lambda: rig.counts == "<HttpUpstream 0 open, 0 idle>")


def finish(call: Call) -> None:
    call.json(b"{}")


async def test_an_attempt_reaches_the_replica_and_its_answer_the_sink(rig: Rig) -> None:
    rig.script.otherwise = answers({"id": 1})
    sink = await rig.exchange()
    (call,) = rig.script.calls
    assert (call.path, call.body) == ("/v1/completions", b"{}")
    assert call.headers == {"host": rig.replica.id, "x-request-id": "req-1", "content-length": "2"}
    assert (sink.status, sink.body, sink.ends) == (200, b'{"id": 1}', ["end"])
    assert rig.counts == "<HttpUpstream 1 open, 1 idle>"


async def test_one_connection_serves_attempts_that_follow_one_another(rig: Rig) -> None:
    rig.script.otherwise = answers({})
    for _ in range(5):
        await rig.exchange()
    assert rig.replica.num_accepted == 1


async def test_attempts_at_once_have_a_connection_each(rig: Rig) -> None:
    await rig.hold(3)
    assert (rig.replica.num_accepted, rig.counts) == (3, "<HttpUpstream 3 open, 0 idle>")


async def test_the_connection_that_was_used_last_is_used_next(rig: Rig) -> None:
    calls = await rig.hold(3)
    for i, call in enumerate((calls[1], calls[2], calls[0])):
        finish(call)
        await rig.idle(i + 1)
    again = await rig.hold(3)
    assert [call._wire for call in again] == [calls[0]._wire, calls[2]._wire, calls[1]._wire]


async def test_no_more_than_max_idle_are_kept_and_the_oldest_goes(rig: Rig) -> None:
    calls = await rig.hold(4)
    for call in calls:
        finish(call)
    await until(lambda: rig.counts == "<HttpUpstream 3 open, 3 idle>")
    await until(lambda: calls[0].is_dropped)
    assert [call.is_dropped for call in calls] == [True, False, False, False]


async def test_a_sweep_closes_what_idled_for_too_long(rig: Rig) -> None:
    first, second = await rig.hold(2)
    finish(first)
    await rig.idle(1)
    rig.clock.now += 2.0
    finish(second)
    await rig.idle(2)
    rig.clock.now += IDLE_S - 1.0
    rig.upstream.sweep()
    await until(lambda: rig.counts == "<HttpUpstream 1 open, 1 idle>")
    await until(lambda: first.is_dropped)
    assert not second.is_dropped


async def test_a_connection_that_idled_for_too_long_is_not_used_even_before_a_sweep(rig: Rig) -> None:
    rig.script.otherwise = answers({})
    await rig.exchange()
    rig.clock.now += IDLE_S
    assert (await rig.exchange()).ends == ["end"]
    assert rig.replica.num_accepted == 2
    await until(lambda: rig.counts == "<HttpUpstream 1 open, 1 idle>")


@pytest.mark.parametrize(
    ("timeout", "waits_s", "num_accepted"), [(60, 40.0, 1), (60, 50.0, 2), (2, 1.0, 1), (2, 1.7, 2)]
)
async def test_a_connection_idles_as_long_as_its_replica_says(
    rig: Rig, timeout: int, waits_s: float, num_accepted: int
) -> None:
    rig.script.otherwise = answers({}, 200, ("keep-alive", f"timeout={timeout}"))
    for _ in range(2):  # by a parser, and by a head that is known
        await rig.exchange()
    rig.clock.now += waits_s
    assert (await rig.exchange()).ends == ["end"]
    assert rig.replica.num_accepted == num_accepted


async def test_a_connection_that_its_replica_closed_leaves_the_pool(rig: Rig) -> None:
    rig.script.otherwise = answers({})
    await rig.exchange()
    rig.script.calls[0].close()
    await until(lambda: rig.counts == "<HttpUpstream 0 open, 0 idle>")
    assert (await rig.exchange()).ends == ["end"]


async def test_replicas_have_pools_of_their_own(rig: Rig) -> None:
    script = Script()
    script.otherwise = rig.script.otherwise = answers({})
    async with hostile_replica(script) as other:
        await rig.exchange()
        sink = FakeSink()
        await rig.upstream.open(make_attempt(other.spec), sink)
        await ended(sink)
        assert (rig.replica.num_accepted, other.num_accepted) == (1, 1)
        await rig.upstream.close()


async def test_a_pooled_connection_that_dies_at_its_reuse_costs_one_more_try(rig: Rig) -> None:
    rig.script.queue.extend([answers({}), closes, answers({"second": True})])
    await rig.exchange()
    sink = await rig.exchange()
    assert (sink.body, sink.ends) == (b'{"second": true}', ["end"])
    assert (rig.replica.num_accepted, len(rig.script.calls)) == (2, 3)


async def test_only_one_more_try(rig: Rig) -> None:
    rig.script.queue.extend([answers({}), closes, closes])
    await rig.exchange()
    assert isinstance((await rig.exchange()).error, ConnectionCut)
    assert len(rig.script.calls) == 3


async def test_a_fresh_connection_that_dies_is_an_error_at_once(rig: Rig) -> None:
    rig.script.otherwise = closes
    assert isinstance((await rig.exchange()).error, ConnectionCut)
    assert len(rig.script.calls) == 1


async def test_the_one_more_try_may_find_nobody(rig: Rig) -> None:
    rig.script.queue.append(answers({}))
    await rig.exchange()
    sink = await rig.ask()
    call = await rig.script.call(1)
    rig.replica.stop_listening()
    call.close()
    await ended(sink)
    assert isinstance(sink.error, ConnectFailed)


async def test_an_abort_during_the_one_more_try_is_heard(rig: Rig) -> None:
    rig.script.queue.extend([answers({}), closes])
    await rig.exchange()
    sink = FakeSink()
    exchange = await rig.upstream.open(make_attempt(rig.replica.spec), sink)
    await until(lambda: rig.upstream._resends)
    exchange.abort()
    await until(lambda: not rig.upstream._resends)
    await until(lambda: rig.counts == "<HttpUpstream 0 open, 0 idle>")
    assert (sink.heard, len(rig.script.calls)) == ([], 2)


async def test_a_replica_that_is_not_there_cannot_be_reached(rig: Rig) -> None:
    with pytest.raises(ConnectFailed, match="cannot be reached"):
        await rig.upstream.open(make_attempt(absent_replica()), FakeSink())
    with pytest.raises(ConnectFailed, match="cannot be reached"):
        await rig.upstream.open(make_attempt(ReplicaSpec("http://host.invalid:1")), FakeSink())


async def test_an_abort_closes_the_connection(rig: Rig) -> None:
    sink = FakeSink()
    exchange = await rig.upstream.open(make_attempt(rig.replica.spec), sink)
    call = await rig.script.call()
    exchange.abort()
    await until(lambda: call.is_dropped)
    assert (sink.heard, rig.counts) == ([], "<HttpUpstream 0 open, 0 idle>")


async def test_a_cancelled_open_leaves_nothing_behind(rig: Rig) -> None:
    for num_turns in range(12):
        opening = asyncio.ensure_future(rig.upstream.open(make_attempt(rig.replica.spec), FakeSink()))
        await turns(num_turns)
        opening.cancel()
        result = (await asyncio.gather(opening, return_exceptions=True))[0]
        if not isinstance(result, BaseException):
            result.abort()
    await until(lambda: rig.counts == "<HttpUpstream 0 open, 0 idle>")
    await until(lambda: not rig.replica.wires)


async def test_closing_ends_every_connection_busy_or_idle(rig: Rig) -> None:
    calls = await rig.hold(3)
    finish(calls[0])
    await rig.idle(1)
    await rig.upstream.close()
    await until(lambda: all(call.is_dropped for call in calls))
    assert rig.counts == "<HttpUpstream 0 open, 0 idle>"


ENDS: dict[str, Behaviour] = {
    "whole": finish,
    "cut": says(b"HTTP/1.1 2", then_closes=True),
    "noise": says(b"noise\r\n"),
    "its last": says(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"),
}


@pytest.mark.parametrize("seed", range(3))
async def test_however_exchanges_end_each_open_connection_is_busy_or_idle(rig: Rig, seed: int) -> None:
    rng, sinks = random.Random(seed), []
    busy: list[tuple[FakeSink, HttpExchange, Call]] = []
    for _ in range(80):
        if not busy or (len(busy) < 6 and rng.random() < 0.5):
            number, sink = len(rig.script.calls), FakeSink()
            exchange = await rig.upstream.open(make_attempt(rig.replica.spec), sink)
            busy.append((sink, exchange, await rig.script.call(number)))
            sinks.append(sink)
        else:
            sink, exchange, call = busy.pop(rng.randrange(len(busy)))
            if rng.random() < 0.2:
                exchange.abort()
            else:
                ENDS[rng.choice(sorted(ENDS))](call)
                await ended(sink)
        rig.clock.now += rng.random()
        rig.upstream.sweep()
        await until(lambda: len(rig.upstream._open) == len(busy) + rig.num_idle)
        assert rig.num_idle <= 3
    assert all(len(sink.ends) <= 1 for sink in sinks)
