"""How a call begins, waits, is cancelled and fails."""

import asyncio
import gc

import grpc

from pointsman.v1.inference_pb2 import ChatEvent, ChatRequest
from router.core import Outcome
from router.errors import ConnectionCut
from router.relay import RelayTimes
from router.transports.grpc.calls import headers_of
from tests.contracts.hostile import DONE, event
from tests.fakes import turns, until
from tests.router.transports.grpc.rig import chat, open_rig, reason_of

Stream = grpc.aio.UnaryStreamCall[ChatRequest, ChatEvent]


async def failure(call: Stream) -> grpc.aio.AioRpcError:
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError("the call ended well")


async def test_cancel_in_prefill_lets_go_of_the_replica() -> None:
    async with open_rig() as rig:
        call = rig.stub.ChatStream(chat())
        exchange = await rig.exchange()
        call.cancel()
        await until(lambda: exchange.is_aborted)
        await rig.until_idle()
        assert rig.station.outcomes == [Outcome.CLIENT_GONE]
        assert rig.station.faults == {}


async def test_cancel_in_mid_stream_lets_go_of_the_replica() -> None:
    async with open_rig() as rig:
        call = rig.stub.ChatStream(chat())
        exchange = await rig.exchange()
        exchange.head()
        exchange.send(event("a"))
        await call.read()
        call.cancel()
        await until(lambda: exchange.is_aborted)
        await rig.until_idle()
        assert rig.station.outcomes == [Outcome.CLIENT_GONE]


async def test_cancel_while_queued_frees_the_place_in_line() -> None:
    async with open_rig(max_in_flight=1) as rig:
        first = [rig.stub.ChatStream(chat(f"{i}")) for i in range(2)]
        await rig.exchange(1)
        waiting = rig.stub.Chat(chat("late"))
        await until(lambda: rig.station.queue.num_waiting == 1)
        waiting.cancel()
        await until(lambda: rig.station.queue.num_waiting == 0)
        for call in first:
            call.cancel()


async def test_cancel_while_the_prompt_is_read_asks_no_replica() -> None:
    async with open_rig() as rig:
        rig.station.prompts.may_read.clear()
        call = rig.stub.Chat(chat())
        await until(lambda: rig.station.gate.num_open)
        call.cancel()
        await rig.until_idle()
        rig.station.prompts.may_read.set()
        await turns()
        assert rig.upstream.exchanges == []


async def test_a_client_that_vanishes_cancels_its_calls() -> None:
    async with open_rig() as rig:
        call = rig.stub.ChatStream(chat())
        exchange = await rig.exchange()
        await rig.channel.close()
        await until(lambda: exchange.is_aborted)
        del call
        gc.collect()


async def test_the_calls_deadline_is_the_requests() -> None:
    async with open_rig() as rig:
        call = rig.stub.ChatStream(chat(), timeout=60.0)
        await rig.exchange()
        [relay] = rig.station.relays
        left_s = relay.request.deadline - rig.station.clock()
        assert 50.0 < left_s <= 61.0  # gRPC rounds what it says of a deadline up
        rig.station.tick(61.0)
        error = await failure(call)
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await rig.until_idle()
        assert rig.station.outcomes == [Outcome.EXPIRED]


async def test_a_cut_before_content_goes_to_another_replica() -> None:
    async with open_rig() as rig:
        call = rig.stub.ChatStream(chat())
        (await rig.exchange()).fail(ConnectionCut("cut"))
        second = await rig.exchange(1)
        second.head()
        second.send(event("b") + DONE)
        second.end()
        assert (await call.read()).text == "b"
        await call.read()


async def test_a_cut_behind_content_is_unavailable_with_its_reason() -> None:
    async with open_rig() as rig:
        call = rig.stub.ChatStream(chat())
        exchange = await rig.exchange()
        exchange.head()
        exchange.send(event("a"))
        assert (await call.read()).text == "a"
        exchange.fail(ConnectionCut("cut"))
        error = await failure(call)
        assert (error.code(), reason_of(error)) == (grpc.StatusCode.UNAVAILABLE, "replica_connection_lost")
        await rig.until_idle()
        assert rig.station.outcomes == [Outcome.CUT_MID_STREAM]


async def test_a_stream_that_waited_says_at_its_end_who_answered() -> None:
    async with open_rig(times=RelayTimes(heartbeat_after_s=10.0)) as rig:
        call = rig.stub.ChatStream(chat(), metadata=(("x-request-id", "mine"),))
        exchange = await rig.exchange()
        rig.station.tick(11.0)
        assert dict(await call.initial_metadata())["x-request-id"] == "mine"
        exchange.head()
        exchange.send(event("a") + DONE)
        exchange.end()
        assert [(await call.read()).text, (await call.read()).text] == ["a", ""]
        assert dict(await call.trailing_metadata())["x-pointsman-replica"] == exchange.attempt.replica.id


async def test_what_waits_for_a_slow_reader_is_bounded_and_the_replica_is_paused() -> None:
    async with open_rig() as rig:
        call = rig.stub.ChatStream(chat())
        exchange = await rig.exchange()
        exchange.head()
        sent = num_quiet = 0
        async with asyncio.timeout(30):
            while num_quiet < 50:  # gRPC's own buffers go on filling for a while after the first pause
                if exchange.is_paused:
                    num_quiet += 1
                    await asyncio.sleep(0.002)
                else:
                    num_quiet, sent = 0, sent + 1
                    exchange.send(event("x" * 5_000))
                    await turns(2)
        for _ in range(sent):
            assert len((await call.read()).text) == 5_000
        await until(lambda: not exchange.is_paused)
        exchange.send(DONE)
        exchange.end()
        await call.read()


async def test_a_full_house_is_resource_exhausted_with_a_time_to_try_again() -> None:
    async with open_rig(max_open_requests=1) as rig:
        first = rig.stub.ChatStream(chat())
        await rig.exchange()
        error = await failure(rig.stub.ChatStream(chat()))
        assert (error.code(), reason_of(error)) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "queue_full")
        first.cancel()


async def test_metadata_become_headers_but_for_what_is_binary_or_the_transports_own() -> None:
    class Asked:
        def invocation_metadata(self) -> list[tuple[str, str | bytes]]:
            return [("x-session-id", "s"), ("trace-bin", b"\xff"), ("grpc-timeout", "1S"), ("user-agent", "grpc")]

    assert headers_of(Asked()) == (("x-session-id", "s"),)  # type: ignore[arg-type]
