"""Requests that go to their replica as one call: what each hears, whatever the others do."""

import asyncio
import json
import random
from collections.abc import Callable, Sequence

from router.core import Attempt, Headers, Replica, Surface
from router.errors import ConnectFailed, ConnectionCut
from router.ports import Exchange
from router.spec import Merge, ReplicaSpec
from router.upstream.merging import MAX_ANSWER_BYTES, MergingUpstream
from tests.fakes import JSON, FakeExchange, FakeUpstream, turns, until
from tests.router.upstream.fakes import FakeSink

LONG_S = 3600.0  # nobody waits for it: the number of requests fills a call


class Bench:
    """Requests through micro-batching, to a replica in memory that answers each prompt with its length."""

    def __init__(self, most: int = 3, wait_s: float = LONG_S, has_idle: bool = True) -> None:
        self.inner = FakeUpstream(has_idle=has_idle)
        self.merged: list[tuple[str, int]] = []
        self.upstream = MergingUpstream(self.inner, lambda _: None, lambda *told: self.merged.append(told))
        self.replica = Replica(ReplicaSpec("http://a", merge=Merge(wait_s, most)))

    def attempt(
        self, prompt: str, path: str = Surface.EMBEDDINGS, headers: Headers = JSON, **fields: object
    ) -> Attempt:
        name = "input" if path == Surface.EMBEDDINGS else "prompt"
        body = json.dumps({"model": "m", name: prompt, **fields}).encode()
        return Attempt(self.replica, f"r-{prompt}", path, headers, body, 1.0, 1.0, 1.0)

    def ask(self, prompt: str, **fields: object) -> tuple[FakeSink, Exchange]:
        sink = FakeSink()
        exchange = self.upstream.open_now(self.attempt(prompt, **fields), sink)  # type: ignore[arg-type]
        assert exchange is not None
        return sink, exchange

    def prompts(self, number: int) -> list[str]:
        """Of one call at the replica."""
        found = json.loads(self.inner.exchanges[number].attempt.body)["input"]
        return [found] if isinstance(found, str) else list(found)


def answer(exchange: FakeExchange) -> None:
    asked = json.loads(exchange.attempt.body)["input"]
    prompts = [asked] if isinstance(asked, str) else asked
    rows = [{"index": index, "embedding": [len(prompt)]} for index, prompt in enumerate(prompts)]
    body = {"data": rows, "usage": {"prompt_tokens": len("".join(prompts)), "total_tokens": len("".join(prompts))}}
    exchange.answer(200, json.dumps(body).encode())


def length_in(sink: FakeSink) -> int:
    assert (sink.heard, sink.status) == (["head", "body", "end"], 200)
    return int(json.loads(sink.body)["data"][0]["embedding"][0])


async def test_eight_callers_are_one_call_and_each_has_its_own_answer() -> None:
    bench = Bench(most=8)
    sinks = [bench.ask("x" * length)[0] for length in range(1, 9)]
    assert len(bench.inner.exchanges) == 1
    answer(bench.inner.exchanges[0])
    await until(lambda: all(sink.ends for sink in sinks))
    assert [length_in(sink) for sink in sinks] == list(range(1, 9))
    assert all(sink.length == len(sink.body) for sink in sinks)
    assert bench.merged == [(bench.replica.id, 8)]


async def test_what_has_come_is_sent_once_the_time_is_over() -> None:
    bench = Bench(wait_s=0.001)
    bench.ask("a")
    bench.ask("b")
    await until(lambda: bench.inner.exchanges)
    assert bench.prompts(0) == ["a", "b"]


async def test_one_that_is_alone_goes_as_it_came() -> None:
    bench = Bench(wait_s=0.001)
    sink, _ = bench.ask("a")
    await until(lambda: bench.inner.exchanges)
    assert bench.inner.exchanges[0].attempt.body == bench.attempt("a").body
    assert bench.inner.exchanges[0].sink is sink
    assert not bench.merged


async def test_only_equal_requests_of_equal_credentials_share_a_call() -> None:
    bench = Bench(most=2)
    bench.ask("a", dimensions=1)
    bench.ask("b", dimensions=2)
    bench.ask("c", headers=(("authorization", "Bearer 1"),))
    bench.ask("d", headers=(("authorization", "Bearer 2"),))
    assert not bench.inner.exchanges
    bench.ask("e", dimensions=1)
    bench.ask("f", headers=(("authorization", "Bearer 2"), ("traceparent", "00-1")))
    assert [bench.prompts(number) for number in (0, 1)] == [["a", "e"], ["d", "f"]]


async def test_chats_streams_and_replicas_that_batch_pass_at_once() -> None:
    bench = Bench()
    chat = Attempt(bench.replica, "r", Surface.CHAT, JSON, b'{"model":"m","messages":[]}', 1.0, 1.0, 1.0)
    bench.upstream.open_now(chat, FakeSink())
    bench.ask("a", path=Surface.COMPLETIONS, stream=True)
    bench.replica = Replica(ReplicaSpec("http://b"))
    bench.ask("a")
    assert len(bench.inner.exchanges) == 3
    bench.inner.has_idle = False
    assert bench.upstream.open_now(chat, FakeSink()) is None
    await bench.upstream.open(chat, FakeSink())
    assert len(bench.inner.exchanges) == 4


async def test_who_leaves_is_left_out_and_harms_nobody() -> None:
    bench = Bench()
    (first, leaving), (second, _) = bench.ask("a"), bench.ask("bb")
    leaving.abort()
    third, later = bench.ask("ccc")
    assert not bench.inner.exchanges  # one more may come
    fourth, _ = bench.ask("dddd")
    assert bench.prompts(0) == ["bb", "ccc", "dddd"]
    later.abort()
    assert not bench.inner.exchanges[0].is_aborted
    answer(bench.inner.exchanges[0])
    await until(lambda: second.ends and fourth.ends)
    assert (length_in(second), length_in(fourth)) == (2, 4)
    await turns()
    assert not first.heard
    assert not third.heard


async def test_a_call_that_nobody_wants_any_more_is_aborted_or_never_made() -> None:
    bench = Bench(most=2)
    exchanges = [bench.ask("a")[1], bench.ask("b")[1]]
    for exchange in exchanges:
        exchange.abort()
    assert bench.inner.exchanges[0].is_aborted
    bench.ask("c")[1].abort()
    bench.ask("d")
    bench.ask("e")
    assert bench.prompts(1) == ["d", "e"]


async def test_one_bad_prompt_fails_alone() -> None:
    bench = Bench()
    sinks = [bench.ask(prompt)[0] for prompt in ("a", "bad", "ccc")]
    bench.inner.exchanges[0].answer(400, b'{"error":"one of them"}')
    await until(lambda: len(bench.inner.exchanges) == 4)
    assert [bench.prompts(number) for number in (1, 2, 3)] == [["a"], ["bad"], ["ccc"]]
    answer(bench.inner.exchanges[1])
    bench.inner.exchanges[2].answer(400, b'{"error":"bad"}')
    answer(bench.inner.exchanges[3])
    assert [sink.status for sink in sinks] == [200, 400, 200]
    assert sinks[1].body == b'{"error":"bad"}'


async def test_a_replica_that_does_not_answer_each_prompt_is_asked_for_each_alone() -> None:
    bench = Bench(most=2)
    bench.ask("a")
    bench.ask("b")
    bench.inner.exchanges[0].answer(200, b'{"data":[{"index":0,"embedding":[1]}]}')
    await until(lambda: len(bench.inner.exchanges) == 3)


async def test_a_call_that_breaks_off_is_made_again_for_each_alone() -> None:
    bench = Bench(most=2)
    sinks = [bench.ask(prompt)[0] for prompt in ("a", "b")]
    bench.inner.exchanges[0].head(200, JSON)
    bench.inner.exchanges[0].send(b'{"data":')
    bench.inner.exchanges[0].fail(ConnectionCut("gone"))
    await until(lambda: len(bench.inner.exchanges) == 3)
    answer(bench.inner.exchanges[1])
    bench.inner.exchanges[2].fail(ConnectionCut("gone again"))
    assert length_in(sinks[0]) == 1
    assert str(sinks[1].error) == "gone again"


async def test_who_left_meanwhile_is_not_asked_for_alone() -> None:
    bench = Bench(most=2)
    bench.ask("a")
    _, leaving = bench.ask("b")
    leaving.abort()
    bench.inner.exchanges[0].answer(500, b"")
    await until(lambda: len(bench.inner.exchanges) == 2)
    await turns()
    assert [bench.prompts(number) for number in (0, 1)] == [["a", "b"], ["a"]]
    assert len(bench.inner.exchanges) == 2


async def test_too_much_to_do_is_told_to_all() -> None:
    bench = Bench(most=2)
    sinks = [bench.ask(prompt)[0] for prompt in ("a", "b")]
    bench.inner.exchanges[0].answer(429, b"slow down", (*JSON, ("retry-after", "3")))
    await until(lambda: all(sink.ends for sink in sinks))
    assert [(sink.status, sink.body, sink.headers["retry-after"]) for sink in sinks] == [(429, b"slow down", "3")] * 2
    assert len(bench.inner.exchanges) == 1


async def test_a_replica_that_is_away_is_told_to_all_and_connecting_ends_with_the_last() -> None:
    bench = Bench(most=2, has_idle=False)
    bench.inner.refusing.add("a")
    sinks = [bench.ask(prompt)[0] for prompt in ("a", "b")]
    await until(lambda: all(sink.ends for sink in sinks))
    assert all(isinstance(sink.error, ConnectFailed) for sink in sinks)
    bench.inner.may_connect.clear()
    exchanges = [bench.ask(prompt)[1] for prompt in ("c", "d")]
    await until(lambda: bench.inner.num_connecting == 1)
    for exchange in exchanges:
        exchange.abort()
    await until(lambda: bench.inner.num_connecting == 0)
    assert not bench.inner.exchanges


async def test_an_answer_beyond_all_measure_is_asked_for_alone() -> None:
    bench = Bench(most=2)
    bench.ask("a")
    bench.ask("b")
    bench.inner.exchanges[0].head(200, JSON)
    piece = bytes(MAX_ANSWER_BYTES // 2)
    for _ in range(3):
        bench.inner.exchanges[0].send(piece)
    assert bench.inner.exchanges[0].is_aborted
    await until(lambda: len(bench.inner.exchanges) == 3)


async def test_the_fault_of_one_that_is_told_is_no_others() -> None:
    bench, faults = Bench(most=2), []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context["exception"]))
    sinks = [bench.ask(prompt)[0] for prompt in ("a", "b")]
    sinks[0].on_each = _raises
    answer(bench.inner.exchanges[0])
    await until(lambda: sinks[1].ends)
    assert length_in(sinks[1]) == 1
    assert [str(fault) for fault in faults] == ["a fault of ours"]


async def test_a_slow_reader_is_asked_for_alone_at_its_own_pace() -> None:
    bench = Bench(most=2)
    _, slow = bench.ask("a")
    bench.ask("b")
    slow.pause()
    bench.inner.exchanges[0].answer(500, b"")
    await until(lambda: len(bench.inner.exchanges) == 3)
    assert [each.is_paused for each in bench.inner.exchanges] == [False, True, False]
    slow.resume()
    assert not bench.inner.exchanges[1].is_paused
    slow.abort()
    assert bench.inner.exchanges[1].is_aborted


async def test_closing_aborts_what_gathers_and_what_connects() -> None:
    bench = Bench(most=2, has_idle=False)
    bench.inner.may_connect.clear()
    bench.ask("a")
    bench.ask("b")
    bench.ask("c")
    await until(lambda: bench.inner.num_connecting == 1)
    await bench.upstream.close()
    await until(lambda: bench.inner.num_connecting == 0)
    assert repr(bench.upstream).startswith("<MergingUpstream 0 calls gather")


async def test_a_crowd_that_comes_leaves_and_fails_at_random_hears_each_exactly_one_end() -> None:
    for seed in range(30):
        dice = random.Random(seed)
        bench = Bench(most=dice.randint(2, 5), wait_s=0.0005, has_idle=dice.random() < 0.5)
        sinks: list[FakeSink] = []
        gone: set[int] = set()
        for number in range(40):
            sink, exchange = bench.ask("x" * (number + 1), dimensions=dice.randint(1, 2))
            sinks.append(sink)
            if dice.random() < 0.2:
                exchange.abort()
                gone.add(number)
            if dice.random() < 0.2:
                await turns(dice.randint(1, 3))
        await _served(bench, dice, [sink for number, sink in enumerate(sinks) if number not in gone])
        await turns()
        for number, sink in enumerate(sinks):
            assert len(sink.ends) == (number not in gone), (seed, number)
            if sink.status == 200:
                assert length_in(sink) == number + 1
        assert bench.inner.num_live == 0


async def _served(bench: Bench, dice: random.Random, sinks: Sequence[FakeSink]) -> None:
    """Until all have heard the end; calls of several fail now and then, those of one never."""
    ways: list[Callable[[FakeExchange], None]] = [
        answer,
        lambda exchange: exchange.answer(400, b"{}"),
        lambda exchange: exchange.fail(ConnectionCut("gone")),
    ]
    async with asyncio.timeout(30):
        while not all(sink.ends for sink in sinks):
            for number, exchange in enumerate(bench.inner.exchanges):
                if exchange.sink is not None:
                    (dice.choice(ways) if len(bench.prompts(number)) > 1 else answer)(exchange)
            await turns(1)


def _raises(_: str) -> None:
    raise RuntimeError("a fault of ours")
