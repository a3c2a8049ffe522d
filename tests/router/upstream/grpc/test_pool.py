"""Connections to replicas, over real sockets, to a replica that is told frame by frame what to do."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import pytest

from router.core import Attempt, Replica
from router.errors import BadAnswer, ConnectFailed, ConnectionCut, UpstreamError
from router.upstream.grpc import frames, hpack
from router.upstream.grpc.answering import Call, Plan
from router.upstream.grpc.frames import Flag, Kind, Setting
from router.upstream.grpc.pool import GrpcUpstream
from tests.contracts.hostile import Script
from tests.contracts.hostile_grpc import GrpcCall, GrpcReplica, Verbatim, VerbatimAnswering, hostile_grpc_replica
from tests.fakes import until
from tests.router.nouns import FakeClock
from tests.router.upstream.fakes import FakeSink


@dataclass(eq=False)
class Bench:
    upstream: GrpcUpstream
    replica: GrpcReplica
    script: Script
    clock: FakeClock

    def attempt(self, body: bytes = b"{}", headers: Sequence[tuple[str, str]] = (), **more: Any) -> Attempt:
        return Attempt(Replica(self.replica.spec), "r", "/s/M", tuple(headers), body, 5.0, 60.0, 60.0, **more)

    async def ask(self, body: bytes = b"{}", **more: Any) -> FakeSink:
        sink = FakeSink()
        await self.upstream.open(self.attempt(body, **more), sink)
        return sink

    async def call(self, number: int = 0) -> GrpcCall:
        return cast(GrpcCall, await self.script.call(number))

    async def answer(self, number: int = 0) -> None:
        call = await self.call(number)
        call.stream()
        call.send(b"hi")
        call.end()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with opened() as bench:
        yield bench


@asynccontextmanager
async def opened(plans: object = None, **settings: int) -> AsyncIterator[Bench]:
    clock, script = FakeClock(), Script()
    upstream = GrpcUpstream(clock, cast(Any, plans or Verbatim()), idle_s=10.0)
    async with hostile_grpc_replica(script) as replica:
        replica.settings = {Setting[name]: value for name, value in settings.items()}
        yield Bench(upstream, replica, script, clock)
        await upstream.close()


async def test_many_calls_share_a_connection(bench: Bench) -> None:
    sinks = [await bench.ask() for _ in range(5)]
    for number in reversed(range(5)):
        await bench.answer(number)
    await until(lambda: all(sink.ends for sink in sinks))
    assert [sink.body for sink in sinks] == [b"hi"] * 5
    assert bench.replica.num_accepted == 1


async def test_a_replica_that_takes_few_calls_at_once_gets_another_connection() -> None:
    async with opened(MAX_CONCURRENT_STREAMS=2) as bench:
        sinks = [await bench.ask() for _ in range(5)]
        for number in range(5):
            await bench.answer(number)
        await until(lambda: all(sink.ends == ["end"] for sink in sinks))
        assert bench.replica.num_accepted == 3


async def test_metadata_has_the_headers_that_may_pass_and_the_time_left(bench: Bench) -> None:
    headers = [("content-type", "application/json"), ("authorization", "Bearer k"), ("x-odd", "é"), ("grpc-x", "y")]
    await bench.ask(headers=headers, deadline=bench.clock() + 3.0)
    call = await bench.call()
    assert call.headers["authorization"] == "Bearer k"
    assert call.headers["grpc-timeout"] == "4000m", "the router's own deadline comes first"
    assert call.headers["content-type"] == "application/grpc"
    assert not {"x-odd", "grpc-x"} & set(call.headers)


async def test_a_long_request_goes_out_as_the_replica_lets_it(bench: Bench) -> None:
    body = bytes(range(256)) * 2000
    sink = await bench.ask(body)
    await until(lambda: bench.replica.wires)
    [wire] = bench.replica.wires
    await until(lambda: wire.calls and len(wire.calls[1].body) == frames.WINDOW_BYTES)
    wire.frame(Kind.WINDOW_UPDATE, 0, 0, (10**6).to_bytes(4, "big"))
    wire.frame(Kind.WINDOW_UPDATE, 0, 1, (10**6).to_bytes(4, "big"))
    call = await bench.call()
    assert call.body == body
    await bench.answer()
    await until(lambda: sink.ends)


async def test_a_larger_window_may_be_said_late(bench: Bench) -> None:
    body = bytes(100_000)
    await bench.ask(body)
    await until(lambda: bench.replica.wires)
    [wire] = bench.replica.wires
    wire.frame(Kind.WINDOW_UPDATE, 0, 0, (10**6).to_bytes(4, "big"))
    wire.transport.write(frames.settings({Setting.INITIAL_WINDOW_SIZE: 200_000}))
    assert (await bench.call()).body == body


async def test_long_headers_go_in_several_frames() -> None:
    block = hpack.field("a", "b" * 40_000)
    found = frames.headers(1, block, frames.FRAME_BYTES)
    kinds, payload = [], b""
    while found:
        length = int.from_bytes(found[:3], "big")
        kinds.append((found[3], found[4]))
        payload, found = payload + found[9 : 9 + length], found[9 + length :]
    assert payload == block
    assert kinds == [(Kind.HEADERS, 0), (Kind.CONTINUATION, 0), (Kind.CONTINUATION, Flag.END_HEADERS)]


async def test_an_answer_is_read_however_it_is_framed(bench: Bench) -> None:
    sink = await bench.ask()
    call = await bench.call()
    block = b"\x88" + hpack.field("content-type", "application/grpc") + hpack.field("x", "y" * 300)
    call.frame(Kind.HEADERS, Flag.PADDED | Flag.PRIORITY, b"\x02" + bytes(5) + block[:7] + bytes(2))
    call.frame(Kind.CONTINUATION, 0, block[7:20])
    call.frame(Kind.CONTINUATION, Flag.END_HEADERS, block[20:])
    message = b"\0" + (6).to_bytes(4, "big") + b"abcdef"
    call.frame(Kind.DATA, Flag.PADDED, b"\x03" + message[:3] + bytes(3))
    for byte in message[3:]:
        call.frame(Kind.DATA, 0, bytes([byte]))
    call.end()
    await until(lambda: sink.ends)
    assert (sink.body, sink.ends) == (b"abcdef", ["end"])


async def test_frames_are_read_however_they_are_cut_into_reads(bench: Bench) -> None:
    sink = await bench.ask()
    await bench.call()
    [wire] = bench.replica.wires
    head = frames.frame(Kind.HEADERS, Flag.END_HEADERS, 1, b"\x88" + hpack.field("content-type", "application/grpc"))
    data = frames.frame(Kind.DATA, 0, 1, b"\0" + (2).to_bytes(4, "big") + b"hi")
    end = frames.frame(Kind.HEADERS, Flag.END_HEADERS | Flag.END_STREAM, 1, hpack.field("grpc-status", "0"))
    [connection] = bench.upstream._open[bench.replica.id]
    for byte in head + data + end:
        connection.data_received(bytes([byte]))
    assert (sink.body, sink.ends) == (b"hi", ["end"])
    assert not wire.is_lost


async def test_many_messages_in_one_read_are_told_in_order(bench: Bench) -> None:
    sink = await bench.ask()
    call = await bench.call()
    call.stream()
    call.data(b"".join(b"\0" + (1).to_bytes(4, "big") + bytes([n]) for n in range(200)))
    call.end()
    await until(lambda: sink.ends)
    assert sink.body == bytes(range(200))


async def test_a_ping_is_answered(bench: Bench) -> None:
    await bench.ask()
    call = await bench.call()
    call._wire.frame(Kind.PING, 0, 0, b"12345678")
    await until(lambda: call._wire.acknowledged == [b"12345678"])


async def test_an_answer_longer_than_any_window_comes_through(bench: Bench) -> None:
    sink = await bench.ask(b'{"stream": false}')
    call = await bench.call()
    call.stream()
    call.send(b"x" * 1_000_000)
    call.end()
    await until(lambda: sink.ends)
    assert (len(sink.body), call.num_unsent) == (1_000_000, 0)


async def test_the_connections_own_window_is_opened_again_and_again(bench: Bench) -> None:
    sink = await bench.ask()
    call = await bench.call()
    call.stream()
    for _ in range(40):
        call.send(b"x" * 500_000)
        await until(lambda: not call.unsent)
    call.end()
    await until(lambda: sink.ends)
    assert len(sink.body) == 20_000_000


async def test_a_call_that_is_not_read_holds_up_no_other(bench: Bench) -> None:
    slow, quick = FakeSink(), FakeSink()
    exchange = await bench.upstream.open(bench.attempt(), slow)
    exchange.pause()
    await bench.upstream.open(bench.attempt(), quick)
    call = await bench.call()
    call.stream()
    call.send(b"x" * 1_000_000)
    await bench.answer(1)
    await until(lambda: quick.ends)
    assert slow.heard == []
    assert call.num_unsent > 900_000
    exchange.resume()
    call.end()
    await until(lambda: slow.ends)
    assert len(slow.body) == 1_000_000


async def test_what_a_leaving_replica_has_not_looked_at_is_sent_anew(bench: Bench) -> None:
    first, second = await bench.ask(), await bench.ask(b"[]")
    call = await bench.call()
    await bench.call(1)
    call.leave(last_id=call.id)
    anew = await bench.call(2)
    assert (anew.body, anew._wire is call._wire) == (b"[]", False)
    await bench.answer(0)
    await bench.answer(2)
    await until(lambda: first.ends == ["end"] and second.ends == ["end"])


async def test_a_refused_call_is_sent_anew_once(bench: Bench) -> None:
    sink = await bench.ask()
    (await bench.call()).refuse()
    (await bench.call(1)).refuse()
    await until(lambda: sink.ends)
    assert isinstance(sink.error, ConnectionCut)
    assert len(bench.script.calls) == 2


async def test_a_reused_connection_that_breaks_at_once_is_replaced(bench: Bench) -> None:
    first = await bench.ask()
    await bench.answer()
    await until(lambda: first.ends)
    second = FakeSink()
    assert bench.upstream.open_now(bench.attempt(), second) is not None
    (await bench.call(1)).reset()
    await bench.answer(2)
    await until(lambda: second.ends == ["end"])


async def test_a_fresh_connection_that_breaks_is_an_error(bench: Bench) -> None:
    sink = await bench.ask()
    (await bench.call()).reset()
    await until(lambda: sink.ends)
    assert isinstance(sink.error, ConnectionCut)


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        frames.frame(Kind.DATA, 0, 1, b"\x01" + bytes(4)),
        frames.frame(Kind.DATA, 0, 1, b"\x00\xff\xff\xff\xff"),
        frames.frame(Kind.HEADERS, Flag.END_HEADERS, 1, b"\xbe"),
        frames.frame(Kind.HEADERS, Flag.END_HEADERS | Flag.PADDED, 1, b"\xff"),
        frames.frame(Kind.HEADERS, 0, 1, b"\x88") + frames.frame(Kind.DATA, 0, 1, b""),
        frames.frame(Kind.CONTINUATION, Flag.END_HEADERS, 1, b"\x88"),
        frames.frame(Kind.PUSH_PROMISE, 0, 1, bytes(4)),
    ],
    ids=["http1", "compressed", "a huge message", "a bad block", "padding", "a broken block", "no block", "push"],
)
async def test_what_is_no_answer_is_an_error_of_the_replica(bench: Bench, data: bytes) -> None:
    sink = await bench.ask()
    (await bench.call()).raw(data)
    await until(lambda: sink.ends)
    assert isinstance(sink.error, BadAnswer)
    assert bench.upstream.num_calls == 0


async def test_a_server_of_http1_is_no_replica(bench: Bench) -> None:
    bench.replica.is_deaf = True
    opening = asyncio.ensure_future(bench.ask())
    await until(lambda: bench.replica.wires)
    [wire] = bench.replica.wires
    wire.transport.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(ConnectFailed):
        await opening


async def test_idle_connections_are_closed_after_a_while(bench: Bench) -> None:
    sink = await bench.ask()
    bench.clock.now += 60.0
    bench.upstream.sweep()
    await bench.answer()
    await until(lambda: sink.ends)
    bench.clock.now += 9.0
    bench.upstream.sweep()
    assert len(bench.upstream._open) == 1
    bench.clock.now += 2.0
    bench.upstream.sweep()
    await until(lambda: not bench.replica.wires and not bench.upstream._open)


@dataclass(eq=False)
class Twice(Verbatim):
    """Two calls for each attempt."""

    def now(self, attempt: Attempt) -> Plan:
        calls = [Call("/s/A", attempt.body), Call("/s/B", attempt.body)]
        return Plan(calls, cast(Any, VerbatimAnswering(is_stream=True)))


async def test_an_attempt_of_several_calls_ends_with_the_last() -> None:
    async with opened(Twice()) as bench:
        sink = await bench.ask()
        await bench.answer(1)
        await until(lambda: sink.body)
        assert not sink.ends
        await bench.answer(0)
        await until(lambda: sink.ends)
        assert (sink.heard.count("head"), sink.body) == (1, b"hihi")


async def test_an_attempt_of_several_calls_fails_with_the_first_and_drops_the_rest() -> None:
    async with opened(Twice()) as bench:
        sink = await bench.ask()
        first, second = await bench.call(0), await bench.call(1)
        first.end(13, ("grpc-message", "broke"))
        await until(lambda: sink.ends)
        assert (sink.status, b"broke" in sink.body) == (500, True)
        await until(lambda: second.is_dropped)
        assert bench.upstream.num_calls == 0


async def test_a_connect_timeout_is_an_error() -> None:
    async with opened() as bench:
        bench.replica.is_deaf = True
        attempt = Attempt(Replica(bench.replica.spec), "r", "/s/M", (), b"", 0.05, 60.0, 60.0)
        with pytest.raises(UpstreamError, match="within"):
            await bench.upstream.open(attempt, FakeSink())
        await until(lambda: not bench.replica.wires)
