import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from router.errors import BadAnswer, ConnectFailed, ConnectionCut, UpstreamError
from router.replicas import fetch as fetch_module
from router.replicas.fetch import ConnectRefused, fetch, open_session
from router.spec import ReplicaSpec
from tests.router.replicas.fakes import FakeReplica


@asynccontextmanager
async def rude_server(answer: bytes) -> AsyncIterator[ReplicaSpec]:
    """Answers any request with these bytes and hangs up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield ReplicaSpec(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")


async def test_the_answer_comes_whatever_its_status() -> None:
    async with FakeReplica("m") as replica, open_session() as session:
        replica.answers["/metrics"] = (500, "boom")
        answer = await fetch(session, replica.spec, "/metrics", 5.0)
        assert (answer.status, answer.body) == (500, b"boom")


async def test_the_replicas_own_key_is_sent() -> None:
    async with FakeReplica("m") as replica, open_session() as session:
        await fetch(session, replica.spec, "/health", 5.0)
        await fetch(session, replace(replica.spec, api_key="k"), "/health", 5.0)
        assert replica.keys == {None, "Bearer k"}


async def test_nobody_listening_is_a_refusal() -> None:
    async with FakeReplica("m") as replica, open_session() as session:
        await replica.die()
        with pytest.raises(ConnectRefused, match="/health refused the connection"):
            await fetch(session, replica.spec, "/health", 5.0)


async def test_a_name_that_does_not_resolve_is_no_refusal() -> None:
    async with open_session() as session:
        with pytest.raises(ConnectFailed, match="cannot be reached") as caught:
            await fetch(session, ReplicaSpec("http://no-such-host.invalid:1"), "/health", 5.0)
        assert not isinstance(caught.value, ConnectRefused)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", ConnectionCut),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc", UpstreamError),
        (b"SSH-2.0-OpenSSH\r\n\r\n", BadAnswer),
    ],
)
async def test_a_broken_answer_is_an_upstream_error(answer: bytes, error: type[UpstreamError]) -> None:
    async with rude_server(answer) as spec, open_session() as session:
        with pytest.raises(error):
            await fetch(session, spec, "/health", 5.0)


async def test_a_redirect_is_not_followed() -> None:
    answer = b"HTTP/1.1 302 Found\r\nlocation: /else\r\ncontent-length: 0\r\n\r\n"
    async with rude_server(answer) as spec, open_session() as session:
        assert (await fetch(session, spec, "/health", 5.0)).status == 302


async def test_a_body_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_module, "MAX_BODY_BYTES", 1000)
    async with FakeReplica("m") as replica, open_session() as session:
        replica.answers["/metrics"] = (200, "x" * 1001)
        with pytest.raises(BadAnswer, match="more than 1000 bytes"):
            await fetch(session, replica.spec, "/metrics", 5.0)
