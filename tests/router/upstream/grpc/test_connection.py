"""Whatever bytes a replica sends, a connection goes on or says that it cannot; it raises nothing, and ends each call at
most once."""

import asyncio
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from router.upstream.grpc import frames, hpack
from router.upstream.grpc.answering import Call, Plan
from router.upstream.grpc.connection import Http2Connection
from router.upstream.grpc.exchange import GrpcExchange
from router.upstream.grpc.frames import Flag, Kind
from tests.contracts.hostile_grpc import VerbatimAnswering
from tests.router.upstream.fakes import FakeSink, FakeSocket
from tests.router.upstream.grpc.plans import attempt

HEAD = b"\x88" + hpack.field("content-type", "application/grpc")
MESSAGE = b"\0" + (2).to_bytes(4, "big") + b"hi"
PAYLOADS = st.sampled_from([b"", HEAD, MESSAGE, MESSAGE[:4], hpack.field("grpc-status", "0"), bytes(4), bytes(8)])
FRAMES = st.builds(
    frames.frame,
    st.sampled_from([*Kind, 77]),
    st.sampled_from([0, Flag.END_STREAM, Flag.END_HEADERS, 5, Flag.PADDED, 0xFF]),
    st.sampled_from([0, 1, 3, 5, 2**31 - 1]),
    PAYLOADS | st.binary(max_size=12),
)


def opened(loop: asyncio.AbstractEventLoop) -> tuple[Http2Connection, list[FakeSink], list[GrpcExchange]]:
    """A connection with three calls on it."""

    async def open_it() -> Http2Connection:
        return Http2Connection(lambda _: None)

    connection = loop.run_until_complete(open_it())
    connection.connection_made(FakeSocket())
    connection.data_received(frames.settings({}))
    sinks, exchanges = [FakeSink() for _ in range(3)], []
    for sink in sinks:
        plan = Plan([Call("/s/M", b"{}")], cast(Any, VerbatimAnswering(is_stream=True)))
        exchanges.append(GrpcExchange(attempt(), sink, plan, lambda exchange: exchange.abort()))
        exchanges[-1].start(connection, None, is_reused=False)
    return connection, sinks, exchanges


@settings(max_examples=300, deadline=None)
@given(st.lists(FRAMES | st.binary(max_size=30), max_size=25), st.integers(1, 60), st.integers(0, 2))
def test_any_bytes_end_each_call_at_most_once(pieces: list[bytes], step: int, num_paused: int) -> None:
    loop = asyncio.new_event_loop()
    try:
        connection, sinks, exchanges = opened(loop)
        for exchange in exchanges[:num_paused]:
            exchange.pause()
        data = b"".join(pieces)
        for at in range(0, len(data), step):
            connection.data_received(data[at : at + step])
        assert not any(sink.heard for sink in sinks[:num_paused] if sink.error is None and not sink.ends)
        for exchange in exchanges:
            exchange.resume()
        connection.connection_lost(None)
        assert all(len(sink.ends) <= 1 for sink in sinks), "FakeSink hears nothing behind an end either"
        assert not connection.streams
    finally:
        loop.close()


def test_a_lost_connection_ends_every_call() -> None:
    loop = asyncio.new_event_loop()
    connection, sinks, _ = opened(loop)
    connection.connection_lost(None)
    assert [sink.ends for sink in sinks] == [["error"]] * 3
    assert repr(connection) == "<Http2Connection closed, 0 calls>"
    loop.close()
