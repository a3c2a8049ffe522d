"""The connection to Redis through all that can become of it."""

import asyncio
import contextlib
import logging
import os
import signal
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from router.store.connection import Script, Store, StoreState
from router.store.errors import StoreAway
from tests.router.store.servers import PROGRAMS, Server, server

ECHO = Script("return {KEYS[1], ARGV[1]}")


async def until(condition: Callable[[], object], patience_s: float = 30.0) -> None:
    async with asyncio.timeout(patience_s):
        while not condition():  # noqa: ASYNC110  (another process is waited for)
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def up(url: str) -> AsyncIterator[Store]:
    store = Store(url, random=lambda: 0.0)
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


async def test_a_paused_server_is_away_within_a_quarter_second_and_back_by_itself(
    redis: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "router")
    async with up(redis.url) as store:
        os.kill(redis.pid, signal.SIGSTOP)
        try:
            loop = asyncio.get_running_loop()
            began = loop.time()
            with pytest.raises(StoreAway, match="does not answer in time"):
                await store.call("GET", "pm:{x}")
            assert store.state is StoreState.AWAY
            spent_s = loop.time() - began
            for _ in range(50):
                with pytest.raises(StoreAway):
                    await store.call("GET", "pm:{x}")
            assert loop.time() - began < spent_s + 0.1, "those after it fail at once"
        finally:
            os.kill(redis.pid, signal.SIGCONT)
        await until(lambda: store.is_up)
        assert await store.call("GET", "pm:{x}") is None
    lines = [record.getMessage() for record in caplog.records]
    assert len([line for line in lines if "is away" in line]) == 1, lines


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
    store = Store(redis.url, random=lambda: 0.0)
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
    wrong = Store(base.replace("secret", "guess"))
    async with wrong.opened():
        await until(lambda: wrong.state is StoreState.UNFIT)
        assert "does not let us in" in wrong.reason


async def test_what_is_not_redis_or_too_old_is_told_and_breaks_nothing(tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.read(100)
        old = b"redis_version:5.0.7\r\nredis_mode:standalone\r\n"
        is_old = tmp_path / "old"
        writer.write(
            b"$%d\r\n%s\r\n" % (len(old), old) * asked.count(b"*") if is_old.exists() else b"HTTP/1.1 400 Bad\r\n\r\n"
        )
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        store = Store(f"redis://127.0.0.1:{port}")
        async with store.opened():
            await until(lambda: store.state is StoreState.AWAY)
            with pytest.raises(StoreAway):
                await store.call("GET", "pm:{x}")


async def test_an_old_version_is_unfit(redis: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.store.connection.OLDEST_VERSION", (99, 0))
    store = Store(redis.url)
    async with store.opened():
        await until(lambda: store.state is StoreState.UNFIT)
        assert "must be 99.0 or newer" in store.reason


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

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_unix_connection(str(redis.socket))
        await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as listening:
        port = listening.sockets[0].getsockname()[1]
        async with up(f"rediss://localhost:{port}?ssl_ca_certs={cert}") as store:
            assert await store.run(ECHO, ["pm:{x}"], ["a"]) == [b"pm:{x}", b"a"]
        stranger = Store(f"rediss://localhost:{port}")
        async with stranger.opened():
            await until(lambda: stranger.state is StoreState.AWAY)
            assert "certificate" in stranger.reason.lower()
