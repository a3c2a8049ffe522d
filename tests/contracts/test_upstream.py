"""What every `ports.Upstream` owes its sink: one head, bodies without framing as they come, one end or error, and
silence after an abort."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import pytest

from router.core import Attempt, Headers, Replica
from router.errors import ConnectFailed, ConnectionCut, UpstreamError
from router.spec import ReplicaSpec
from tests.contracts.adapters import AROUND, UPSTREAMS, HttpUpstreams, chat_body
from tests.contracts.hostile import DONE, HostileReplica, Script, absent_replica, answers, event
from tests.fakes import turns, until
from tests.router.nouns import FakeClock


@dataclass(eq=False)
class Heard:
    """A sink that keeps what it heard, in order."""

    words: list[str] = field(default_factory=list)
    status: int | None = None
    headers: Headers = ()
    payloads: list[bytes] = field(default_factory=list)
    error: UpstreamError | None = None

    def on_head(self, status: int, headers: Headers, length: int | None) -> None:
        self.words.append("head")
        self.status, self.headers = status, headers

    def on_body(self, payload: bytes, framed: bytes | None) -> None:
        self.words.append("body")
        self.payloads.append(payload)

    def on_end(self) -> None:
        self.words.append("end")

    def on_error(self, error: UpstreamError) -> None:
        self.words.append("error")
        self.error = error

    @property
    def body(self) -> bytes:
        return b"".join(self.payloads)

    @property
    def is_over(self) -> bool:
        return bool(self.words) and self.words[-1] in ("end", "error")


@dataclass(eq=False)
class Bench:
    """An upstream, a replica of its kind, and what the sink heard."""

    upstreams: HttpUpstreams
    replica: HostileReplica
    script: Script
    clock: FakeClock

    def attempt(self, spec: ReplicaSpec | None = None, body: bytes = b"{}") -> Attempt:
        return Attempt(
            replica=Replica(spec or self.replica.spec),
            request_id="r",
            path="/v1/chat/completions",
            headers=(("content-type", "application/json"), ("x-odd", "kept")),
            body=body,
            connect_timeout_s=5.0,
            first_byte_timeout_s=60.0,
            idle_timeout_s=60.0,
        )


@pytest.fixture(params=[*UPSTREAMS, *AROUND])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    clock, script = FakeClock(), Script()
    upstreams = {**UPSTREAMS, **AROUND}[request.param](clock)
    async with AsyncExitStack() as stack:
        replica = await stack.enter_async_context(upstreams.replica(script))
        stack.push_async_callback(upstreams.upstream.close)
        yield Bench(upstreams, replica, script, clock)


async def test_a_request_reaches_the_replica_as_it_is(bench: Bench) -> None:
    body = chat_body(user="é", x=[1.5])
    bench.script.otherwise = answers({})
    await bench.upstreams.upstream.open(bench.attempt(body=body), Heard())
    call = await bench.script.call()
    assert (call.path, call.body) == ("/v1/chat/completions", body)
    assert (call.headers["content-type"], call.headers["x-request-id"]) == (bench.upstreams.content_type, "r")
    assert call.headers["x-odd"] == "kept"


async def test_an_answer_is_heard_as_one_head_bodies_and_one_end(bench: Bench) -> None:
    heard = Heard()
    await bench.upstreams.upstream.open(bench.attempt(), heard)
    call = await bench.script.call()
    call.stream()
    await until(lambda: heard.words == ["head"])
    assert heard.status == 200
    assert ("content-type", "text/event-stream; charset=utf-8") in heard.headers
    for text in ("a", "b"):
        call.send(event(text))
        await until(lambda text=text: heard.payloads and heard.payloads[-1] == event(text))  # type: ignore[misc]
    call.send(DONE)
    call.end()
    await until(lambda: heard.is_over)
    assert heard.words == ["head", "body", "body", "body", "end"]
    assert heard.body == event("a") + event("b") + DONE


async def test_an_error_status_is_an_answer_like_any_other(bench: Bench) -> None:
    heard = Heard()
    error = {"message": "x", "type": "rate_limit_error", "param": None, "code": "replica_overloaded"}
    bench.script.otherwise = answers({"error": error}, 429, ("Retry-After", "3"))
    await bench.upstreams.upstream.open(bench.attempt(), heard)
    await until(lambda: heard.is_over)
    assert (heard.status, json.loads(heard.body), heard.words[-1]) == (429, {"error": error}, "end")
    assert ("retry-after", "3") in heard.headers


async def test_what_needs_a_connection_is_not_sent_now(bench: Bench) -> None:
    heard = Heard()
    assert bench.upstreams.upstream.open_now(bench.attempt(), heard) is None
    await turns()
    assert (heard.words, bench.script.calls) == ([], [])


async def test_what_has_a_connection_is_sent_now(bench: Bench) -> None:
    bench.script.otherwise = answers({})
    first, second = Heard(), Heard()
    await bench.upstreams.upstream.open(bench.attempt(), first)
    await until(lambda: first.is_over)
    assert bench.upstreams.upstream.open_now(bench.attempt(body=b"[]"), second) is not None
    await until(lambda: second.is_over)
    assert second.words == ["head", "body", "end"]
    assert [call.body for call in bench.script.calls] == [b"{}", b"[]"]


async def test_a_replica_that_is_not_there_raises(bench: Bench) -> None:
    heard = Heard()
    with pytest.raises(ConnectFailed):
        await bench.upstreams.upstream.open(bench.attempt(absent_replica()), heard)
    assert heard.words == []


@pytest.mark.parametrize("has_head", [False, True])
async def test_a_loss_is_heard_once_as_an_error(bench: Bench, has_head: bool) -> None:
    heard = Heard()
    await bench.upstreams.upstream.open(bench.attempt(), heard)
    call = await bench.script.call()
    if has_head:
        call.stream()
        call.send(event("a"))
        await until(lambda: heard.payloads)
    call.reset()
    await until(lambda: heard.is_over)
    await turns()
    assert heard.words == ["head", "body", "error"] if has_head else ["error"]
    assert isinstance(heard.error, ConnectionCut)


async def test_after_an_abort_nothing_is_heard_and_the_replica_is_let_go_of(bench: Bench) -> None:
    heard = Heard()
    exchange = await bench.upstreams.upstream.open(bench.attempt(), heard)
    call = await bench.script.call()
    call.stream()
    call.send(event("a"))
    await until(lambda: heard.payloads)
    call.send(event("b"))
    exchange.abort()
    assert bench.upstreams.num_busy == 0, "in this very turn of the loop"
    exchange.abort()
    await until(lambda: call.is_dropped)
    assert heard.words == ["head", "body"]


async def test_an_abort_from_within_the_sink_is_heeded_at_once(bench: Bench) -> None:
    class Leaver(Heard):
        def on_head(self, status: int, headers: Headers, length: int | None) -> None:
            super().on_head(status, headers, length)
            exchange.abort()

    heard = Leaver()
    exchange = await bench.upstreams.upstream.open(bench.attempt(), heard)
    call = await bench.script.call()
    call.stream()
    call.send(event("a"))
    await until(lambda: call.is_dropped)
    assert heard.words == ["head"]


async def test_a_paused_exchange_hears_nothing_until_it_is_resumed(bench: Bench) -> None:
    heard = Heard()
    exchange = await bench.upstreams.upstream.open(bench.attempt(), heard)
    call = await bench.script.call()
    exchange.pause()
    exchange.pause()
    call.stream()
    call.send(event("a"))
    await turns(50)
    assert heard.words == []
    exchange.resume()
    exchange.resume()
    await until(lambda: heard.payloads == [event("a")])
    exchange.abort()


async def test_a_cancelled_open_leaves_nothing_behind(bench: Bench) -> None:
    async with bench.upstreams.deaf_replica(bench.script) as deaf:
        opening = asyncio.ensure_future(bench.upstreams.upstream.open(bench.attempt(deaf.spec), Heard()))
        await until(lambda: deaf.wires)
        opening.cancel()
        await until(lambda: opening.done() and not deaf.wires)
        assert opening.cancelled()
        assert bench.upstreams.num_busy == 0


async def test_close_lets_go_of_every_replica(bench: Bench) -> None:
    heard = [Heard() for _ in range(3)]
    for each in heard:
        await bench.upstreams.upstream.open(bench.attempt(), each)
    await bench.script.call(2)
    await bench.upstreams.upstream.close()
    await until(lambda: not bench.replica.wires)
    assert bench.upstreams.num_busy == 0
