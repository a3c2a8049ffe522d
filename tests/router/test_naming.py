"""Names that operators give: aliases, splits, stand-ins; alone, and through the proxy."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core import Outcome, Pool
from router.errors import ConnectionCut
from router.naming import Names, Share, parse_names, renamed
from tests.fakes import FakeReply, FakeUpstream, Station, specs_of, until
from tests.router.nouns import make_request

BODY = b'{"model":"a","x":1.50,"messages":[{"role":"user","content":"\\u00e9"}]}'


def test_a_renamed_body_keeps_every_other_byte() -> None:
    request = renamed(make_request(model="a", body=BODY), 'b"\n')
    assert request.model == 'b"\n'
    assert request.body == BODY.replace(b'"a"', b'"b\\"\\n"')
    assert json.loads(request.body)["x"] == 1.5


@given(st.lists(st.text(min_size=1), min_size=1, unique=True))
def test_a_session_stays_with_its_model(sessions: list[str]) -> None:
    names = Names({"n": (Share("a", 1.0), Share("b", 3.0))})
    for session in sessions:
        chosen = {names.named(make_request(model="n", body=BODY, session=session)).model for _ in range(3)}
        assert len(chosen) == 1


def test_a_split_follows_its_weights() -> None:
    names = parse_names(["n=a:1,b:3"], [])
    chosen = [names.named(make_request(model="n", body=BODY, session=f"s{i}")).model for i in range(4000)]
    assert 0.72 < chosen.count("b") / len(chosen) < 0.78


def test_settings_are_read() -> None:
    names = parse_names(["gpt=llama", "canary=llama:9,llama:v2:1"], ["llama=small, smaller"])
    assert names.aliases["gpt"] == [Share("llama", 1.0)]
    assert names.aliases["canary"] == [Share("llama", 9.0), Share("llama:v2", 1.0)]
    assert names.stand_ins("llama") == ["small", "smaller"]
    assert not parse_names([], [])


@pytest.mark.parametrize(
    ("aliases", "fallbacks"),
    [
        (["n"], []),
        (["n="], []),
        (["=a"], []),
        (["n=a,,b"], []),
        (["n=a:0"], []),
        (["n=a:inf"], []),
        (["n=a", "n=b"], []),
        (["n=a", "o=n"], []),
        ([], ["a=a"]),
        ([], ["a=b", "a=c"]),
        ([], ["a"]),
    ],
)
def test_what_is_wrong_is_said(aliases: list[str], fallbacks: list[str]) -> None:
    with pytest.raises(ValueError, match="`"):
        parse_names(aliases, fallbacks)


def test_aliases_are_listed_behind_the_models() -> None:
    entries = [{"id": "a", "root": "a", "parent": None}]
    names = parse_names(["n=gone,a", "gone2=gone", "a2=a"], [])
    assert [(entry["id"], entry["root"]) for entry in names.listed(entries)] == [("a", "a"), ("n", "a"), ("a2", "a")]


async def test_an_alias_reaches_its_model_under_the_models_name() -> None:
    upstream, reply = FakeUpstream(), FakeReply()
    station = Station(upstream, specs_of("ab"))
    station.proxy.names = parse_names(["n=m"], [])
    serving = asyncio.ensure_future(station.proxy.handle(make_request(model="n", body=BODY), reply))
    await until(lambda: upstream.exchanges)
    assert json.loads(upstream.exchanges[0].attempt.body)["model"] == "m"
    upstream.exchanges[0].answer(200, b"{}")
    await serving
    assert (reply.status, station.left_over) == (200, {})


async def test_a_stand_in_serves_where_the_model_is_unknown() -> None:
    upstream, reply = FakeUpstream(), FakeReply()
    station = Station(upstream, specs_of("ab"))
    station.proxy.names = parse_names([], ["other=none,m"])
    serving = asyncio.ensure_future(station.proxy.handle(make_request(model="other", body=BODY), reply))
    await until(lambda: upstream.exchanges)
    upstream.exchanges[0].answer(200, b"{}")
    await serving
    assert reply.status == 200


async def test_a_model_that_is_away_is_not_waited_for_while_a_stand_in_is_there() -> None:
    """One whose replicas are gone would be waited for until the queue's time is over. Where all are away, or the others
    unknown, it is waited for all the same."""
    upstream = FakeUpstream()
    station = Station(upstream, specs_of("ab"))
    pools = {"m": station.registry.resolve("m"), "gone": (Pool("gone"), None)}
    station.proxy.find, away = pools.get, {"gone"}
    station.proxy.is_there = lambda pool: pool.model not in away
    station.proxy.names = parse_names([], ["gone=m", "m=gone,unknown"])
    for asked in ("gone", "m"):
        reply = FakeReply()
        body = BODY.replace(b'"a"', b'"%b"' % asked.encode())
        serving = asyncio.ensure_future(station.proxy.handle(make_request(model=asked, body=body), reply))
        await until(lambda: len(upstream.exchanges) == 1)
        assert json.loads(upstream.exchanges[0].attempt.body)["model"] == "m"
        upstream.exchanges.pop().answer(200, b"{}")
        await serving
        assert reply.status == 200
    away.add("m")
    assert station.proxy._worth_asking(["m", "gone", "unknown"]) == ["m", "gone", "unknown"]
    away.discard("m")
    assert station.proxy._worth_asking(["gone", "unknown", "m"]) == ["unknown", "m"]


async def test_a_stand_in_serves_where_every_replica_fails() -> None:
    upstream, reply = FakeUpstream(), FakeReply()
    station = Station(upstream, specs_of("a"))
    station.proxy.names = Names(fallbacks={"m": ["m"]})  # the same model once more
    serving = asyncio.ensure_future(station.proxy.handle(make_request(body=BODY), reply))
    await until(lambda: upstream.exchanges)
    upstream.exchanges[0].fail(ConnectionCut("cut"))
    await until(lambda: len(upstream.exchanges) == 2)
    upstream.exchanges[1].answer(200, b"{}")
    await serving
    assert reply.status == 200
    assert station.outcomes == [Outcome.UPSTREAM_FAILED, Outcome.OK]
    assert station.left_over == {}


async def test_nobody_stands_in_for_a_request_that_is_wrong() -> None:
    upstream, reply = FakeUpstream(), FakeReply()
    station = Station(upstream, specs_of("ab"))
    station.proxy.names = Names(fallbacks={"m": ["m"]})
    serving = asyncio.ensure_future(station.proxy.handle(make_request(body=BODY), reply))
    await until(lambda: upstream.exchanges)
    upstream.exchanges[0].answer(400, b'{"error":{"message":"no"}}')
    await serving
    assert (reply.status, len(upstream.exchanges)) == (400, 1)


async def test_nobody_stands_in_behind_content() -> None:
    upstream, reply = FakeUpstream(), FakeReply()
    station = Station(upstream, specs_of("ab"))
    station.proxy.names = Names(fallbacks={"m": ["m"]})
    request = make_request(body=BODY, is_stream=True)
    serving = asyncio.ensure_future(station.proxy.handle(request, reply))
    await until(lambda: upstream.exchanges)
    upstream.exchanges[0].head()
    upstream.exchanges[0].send(b"data: {}\n\n")
    upstream.exchanges[0].fail(ConnectionCut("cut"))
    await serving
    assert len(upstream.exchanges) == 1
    assert b"[DONE]" in reply.answer
