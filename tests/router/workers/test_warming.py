"""A router that begins learns from a sibling what was sent where."""

import random
import time
from array import array
from typing import Any

import msgspec
import pytest
from aiohttp import web

from router.prefix.index import BlockIndex
from router.replicas.lessons import Lesson
from router.spec import ReplicaSpec
from router.workers import warming
from tests.router.prefix.test_index import chain, random_chains
from tests.router.replicas.test_lessons import make_lesson
from tests.router.served import served


def answering(
    status: int, body: bytes, keys: list[str | None] | None = None, path: str = warming.PATH
) -> web.Application:
    async def answer(request: web.Request) -> web.Response:
        if keys is not None:
            keys.append(request.headers.get("authorization"))
        return web.Response(status=status, body=body)

    app = web.Application()
    app.router.add_get(path, answer)
    return app


def known() -> BlockIndex:
    rng, index = random.Random(3), BlockIndex(2**22)
    for each in random_chains(rng, 60):
        index.insert(rng.choice("abc"), each)
    return index


async def test_what_a_sibling_knows_is_known_after_asking_it() -> None:
    index, copy, keys = known(), BlockIndex(2**22), list[str | None]()
    async with served(answering(200, warming.export(index, "abc"), keys)) as url:
        for id, packed in await warming.ask([ReplicaSpec(url, api_key="k")]):
            copy.insert(id, array("Q", packed))
    assert keys == ["Bearer k"]
    for each in random_chains(random.Random(3), 60):
        assert copy.match(each) == index.match(each)
    assert {id: copy.num_blocks(id) for id in "abc"} == {id: index.num_blocks(id) for id in "abc"}


async def test_the_first_sibling_that_answers_is_believed_and_none_is_no_harm() -> None:
    good = warming.pack([("a", array("Q", [1, 2]).tobytes()), ("a", b"odd"), ("b", b"")])
    async with (
        served(answering(500, b"")) as broken,
        served(answering(200, b"<html>")) as stranger,
        served(answering(200, good)) as sibling,
    ):
        nowhere = ReplicaSpec("http://127.0.0.1:9")
        asked = [nowhere, ReplicaSpec(broken), ReplicaSpec(stranger), ReplicaSpec(sibling)]
        assert await warming.ask(asked) == [("a", array("Q", [1, 2]).tobytes())]
        assert await warming.ask(asked[:3]) == []


def test_of_more_than_fits_the_latest_is_kept_for_each_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warming, "MAX_BYTES", 2 * 5 * 8)
    index = BlockIndex(2**20)
    for at in range(4):
        for id in "ab":
            index.insert(id, chain(at, 1))
    chains: list[Any] = msgspec.msgpack.decode(warming.export(index, "ab"))
    assert [(id, list(array("Q", packed))) for id, packed in chains] == [
        (id, chain(at, 1)) for id in "ab" for at in (2, 3)
    ]


async def test_what_a_sibling_has_learned_is_in_seconds_of_our_own_clock() -> None:
    """But what it says of its own loopback, unless that is ours, is of another machine."""
    now = time.monotonic()
    told = [make_lesson(replica_id=id, since=now - 100.0, at=now) for id in ("a:1", "127.0.0.1:8000")]
    packed = warming.pack_lessons(told)
    assert abs(msgspec.msgpack.decode(packed, type=list[Lesson])[0].at - time.time()) < 60.0
    async with (
        served(answering(200, packed, path=warming.LESSONS_PATH)) as url,
        served(answering(200, b"<html>", path=warming.LESSONS_PATH)) as stranger,
    ):
        found = await warming.ask_lessons([ReplicaSpec(stranger), ReplicaSpec(url)])
        assert [lesson.replica_id for lesson in found] == ["a:1", "127.0.0.1:8000"]
        assert abs(found[0].at - now) < 1.0
        assert abs(found[0].since - (now - 100.0)) < 1.0
        assert await warming.ask_lessons([ReplicaSpec(stranger)]) == []
