"""The connection to Redis through all that can become of it."""

import asyncio
import contextlib
import logging
import os
import re
import signal
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from router.store.connection import TIMEOUT_S, Script, Store, StoreState
from router.store.errors import StoreAway
from tests.router.store.servers import PROGRAMS, Server, pump, server

ECHO = Script("return {KEYS[1], ARGV[1]}")


async def until(condition: Callable[[], object], patience_s: float = 30.0) -> None:
    async with asyncio.timeout(patience_s):
        while not condition():  # noqa: ASYNC110  (another process is waited for)
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def up(url: str, timeout_s: float = 20.0) -> AsyncIterator[Store]:
    store = Store(url, timeout_s, random=lambda: 0.0)
    async with store.opened():
        await until(lambda: store.is_up)
        yield store


@pytest.fixture(params=sorted(PROGRAMS))
def redis(request: pytest.FixtureRequest) -> Iterator[Server]:
    with server(request.param) as running:
        yield running


async def test_a_script_runs_by_its_hash_and_again_after_its_cache_was_flushed(redis: Server) -> None:
    async with up(redis.url) as store:
        for _ in range(2):
            assert await store.run(ECHO, ["pm:{x}"], ["a"]) == [b"pm:{x}", b"a"]
            redis.client.script_flush()
        assert await store.run(ECHO, ["pm:{x}"], ["a"]) == [b"pm:{x}", b"a"]
        assert store.is_up


async def test_a_cancelled_caller_does_not_cost_the_connection(redis: Server) -> None:
    async with up(redis.url) as store:
        id = await store.call("CLIENT", "ID")
        waiting = asyncio.ensure_future(store.run(Script("return redis.call('INCR', KEYS[1])"), ["pm:{x}"], []))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await until(lambda: redis.client.get("pm:{x}") == b"1")  # the command goes through to its end
        assert str(id) in [client["id"] for client in redis.client.client_list()], "its connection is still there"
        assert store.num_losses == 0


async def test_a_paused_server_is_away_and_back_by_itself_and_nobody_waits_for_it_twice(
    redis: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "router")
    assert TIMEOUT_S <= 0.25
    async with up(redis.url, TIMEOUT_S) as store:
        os.kill(redis.pid, signal.SIGSTOP)
        try:
            with pytest.raises(StoreAway, match="does not answer in time"):
                await store.call("GET", "pm:{x}")
            assert store.state is StoreState.AWAY
            for _ in range(50):
                with pytest.raises(StoreAway):
                    store.call("GET", "pm:{x}").send(None)
            lines = [record.getMessage() for record in caplog.records]
            assert len([line for line in lines if "is away" in line]) == 1, lines
        finally:
            os.kill(redis.pid, signal.SIGCONT)
        await until(lambda: store.is_up)


async def test_a_server_that_was_restarted_is_found_again(redis: Server) -> None:
    told: list[bool] = []
    async with up(redis.url) as store:
        store.on_change = told.append
        redis.stop()
        with pytest.raises(StoreAway):
            await store.call("GET", "pm:{x}")
        redis.start()
        await until(lambda: store.is_up)
    assert told == [False, True]


async def test_a_store_that_is_not_there_at_the_start_is_waited_for_in_the_background(redis: Server) -> None:
    redis.stop()
    store = Store(redis.url, 20.0, random=lambda: 0.0)
    async with store.opened():
        await until(lambda: store.state is StoreState.AWAY)
        redis.start()
        await until(lambda: store.is_up)


async def test_one_that_is_full_is_away_until_it_is_not(redis: Server) -> None:
    async with up(redis.url) as store:
        redis.client.config_set("maxmemory", 1)
        with pytest.raises(StoreAway, match=r"OutOfMemory|OOM"):
            await store.call("SET", "pm:{x}", "y")
        await asyncio.sleep(0.4)
        assert store.state is StoreState.AWAY, "a probe writes"
        redis.client.config_set("maxmemory", 0)
        await until(lambda: store.is_up)


async def test_one_that_became_a_replica_is_away_until_it_is_promoted(redis: Server) -> None:
    async with up(redis.url) as store:
        redis.command("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(StoreAway, match=r"ReadOnly|READONLY|MASTERDOWN"):
            await store.call("SET", "pm:{x}", "y")
        redis.command("REPLICAOF", "NO", "ONE")
        await until(lambda: store.is_up)


async def test_a_user_with_rights_to_our_keys_only_is_enough_and_a_wrong_password_is_told(redis: Server) -> None:
    redis.command("ACL", "SETUSER", "pointsman", "on", ">secret", "~pm:*", "+@all", "-@dangerous", "+info")
    base = redis.url.replace("unix://", "unix://pointsman:secret@")
    async with up(base) as store:
        assert await store.run(ECHO, ["pm:{x}"], ["a"]) == [b"pm:{x}", b"a"]
    wrong = Store(base.replace("secret", "guess"), 20.0)
    async with wrong.opened():
        await until(lambda: wrong.state is StoreState.UNFIT)
        assert "does not let us in" in wrong.reason


@contextlib.asynccontextmanager
async def saying(words: bytes) -> AsyncIterator[str]:
    """The URL of something that says this to each command."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while asked := await reader.read(4096):
                writer.write(words * len(re.findall(rb"^\*", asked, re.MULTILINE)))
                await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        yield f"redis://127.0.0.1:{listening.sockets[0].getsockname()[1]}"


async def test_what_is_not_redis_is_told_and_breaks_nothing() -> None:
    async with saying(b"HTTP/1.1 400 Bad Request\r\n\r\n") as url:
        store = Store(url, 20.0)
        async with store.opened():
            await until(lambda: store.state is StoreState.AWAY)
            with pytest.raises(StoreAway, match="Protocol Error"):
                await store.call("GET", "pm:{x}")


async def test_a_version_that_is_too_old_is_unfit() -> None:
    old = b"redis_version:6.0.16\r\nredis_mode:standalone\r\n"
    async with saying(b"$%d\r\n%s\r\n" % (len(old), old)) as url:
        store = Store(url, 20.0)
        async with store.opened():
            await until(lambda: store.state is StoreState.UNFIT)
            assert store.reason == "The store is Redis 6.0.16; it must be 6.2 or newer."
            assert repr(store) == f"<Store UNFIT ({store.reason})>"


def make_certificate(key: Path, cert: Path) -> None:
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    command = ["openssl", *words.split(), "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    try:
        subprocess.run([*command, "-keyout", key, "-out", cert], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl to make a certificate with")


async def test_a_tls_url_reaches_a_server_behind_tls(redis: Server, tmp_path: Path) -> None:
    """No server of the wheels speaks TLS itself: an endpoint in front of it does."""
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    make_certificate(key, cert)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_unix_connection(str(redis.socket))
        await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as listening:
        port = listening.sockets[0].getsockname()[1]
        async with up(f"rediss://localhost:{port}?ssl_ca_certs={cert}") as store:
            assert await store.run(ECHO, ["pm:{x}"], ["a"]) == [b"pm:{x}", b"a"]
        stranger = Store(f"rediss://localhost:{port}", 20.0)
        async with stranger.opened():
            await until(lambda: stranger.state is StoreState.AWAY)
            assert "certificate" in stranger.reason.lower()
