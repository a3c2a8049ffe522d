"""The socket itself: the handshake, origins, pings, limits, half messages, clients that never close."""

import asyncio
import struct

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from router.transports.websocket.socket import SocketLimits
from tests.fakes import turns, until
from tests.router.transports.websocket.rig import Rig, open_rig


async def closing_code(rig: Rig, *messages: str | bytes) -> int:
    client = await rig.connect()
    for message in messages:
        await client.wire.send(message)
    with pytest.raises(ConnectionClosed) as caught:
        await client.hear()
    assert caught.value.rcvd is not None
    return caught.value.rcvd.code


async def test_a_browser_of_another_origin_is_refused() -> None:
    async with open_rig(origins=("https://chat.example",)) as rig:
        ours = await rig.connect(origin="https://chat.example")
        await ours.wire.close()
        await (await rig.connect()).wire.close()  # no browser, no origin
        with pytest.raises(InvalidStatus) as caught:
            await rig.connect(origin="https://evil.example")
        assert caught.value.response.status_code == 403


async def test_binary_messages_are_refused() -> None:
    async with open_rig() as rig:
        assert await closing_code(rig, b"\x00") == 1003


async def test_a_message_over_the_limit_is_refused_whole_or_in_pieces() -> None:
    async with open_rig(SocketLimits(max_message_bytes=1000)) as rig:
        assert await closing_code(rig, "x" * 1001) == 1009
        client = await rig.connect()
        await client.wire.send(["x" * 600, "y" * 600])
        with pytest.raises(ConnectionClosed) as caught:
            await client.hear()
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1009


async def test_a_message_in_pieces_is_one_message() -> None:
    async with open_rig() as rig:
        client = await rig.connect()
        await client.wire.send(
            ['{"type":"request.create","id":"a","body":{"model":"m","mess', 'ages":[{"role":"user"}]}}']
        )
        await rig.exchange()
        await client.wire.close()


async def test_a_silent_client_is_pinged_and_one_that_does_not_answer_is_dropped() -> None:
    async with open_rig(SocketLimits(ping_after_s=20.0, pong_timeout_s=20.0)) as rig:
        client = await rig.connect()
        await until(lambda: rig.sockets.open)
        [socket] = rig.sockets.open
        for _ in range(3):
            rig.station.clock.now += 21.0
            rig.sockets.sweep()
            await until(lambda: socket._pinged_at is None)  # its pong has come
        client.wire.transport.pause_reading()
        rig.station.clock.now += 21.0
        rig.sockets.sweep()
        await turns()
        rig.station.clock.now += 21.0
        rig.sockets.sweep()
        await until(lambda: not rig.sockets.open)


async def test_a_client_that_never_closes_is_dropped() -> None:
    async with open_rig(SocketLimits(close_timeout_s=5.0)) as rig:
        client = await rig.connect()
        await until(lambda: rig.sockets.open)
        client.wire.transport.pause_reading()
        rig.sockets.close()
        await turns()
        assert rig.sockets.open
        rig.station.clock.now += 6.0
        rig.sockets.sweep()
        await until(lambda: not rig.sockets.open)


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\x81\x05hello",  # not masked
        b"\x83\x80\0\0\0\0",  # a reserved opcode
        b"\x88\x80\0\0\0\0",  # a close without a code
        b"\x81\x81\0\0\0\0\xff",  # not UTF-8
        b"\x81\xff" + struct.pack("!Q", 2**62) + b"\0\0\0\0",  # endless
    ],
)
async def test_a_broken_frame_ends_its_socket_alone(nonsense: bytes) -> None:
    async with open_rig() as rig:
        other = await rig.connect()
        broken = await rig.connect()
        broken.wire.transport.write(nonsense)
        with pytest.raises(ConnectionClosed):
            await broken.hear()
        await other.ask("a")
        await rig.exchange()
        await other.wire.close()


async def test_a_plain_request_on_the_path_is_no_socket() -> None:
    async with open_rig() as rig:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        writer.write(b"GET /v1/chat/ws HTTP/1.1\r\nhost: a\r\n\r\n")
        assert b" 404 " in await reader.readline()
        writer.close()


async def test_a_handshake_that_is_wrong_is_answered_and_closed() -> None:
    async with open_rig() as rig:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        writer.write(b"GET /v1/chat/ws HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
        assert b" 400 " in await reader.readline()
        writer.close()
        await until(lambda: not rig.sockets.open)
