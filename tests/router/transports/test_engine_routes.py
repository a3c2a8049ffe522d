"""Engines' own routes on a data port, over a real station whose replicas are in memory."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from tokenizers import Tokenizer, models, pre_tokenizers

from router.core import Headers, Outcome, Pool
from router.errors import Forbidden
from router.naming import parse_names
from router.prefix.reader import Prompts
from router.prefix.source import TokenizerSource
from router.transports import http
from router.transports.engine_routes import EngineRoutes, parse_passed
from router.transports.web import openai_errors, paths_of
from tests.fakes import FakeExchange, FakeUpstream, Station, specs_of, until

TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}{% if add_generation_prompt %}said{% endif %}"


@dataclass(eq=False)
class Rig:
    station: Station
    upstream: FakeUpstream
    prompts: Prompts
    session: aiohttp.ClientSession
    refused: list[int] = field(default_factory=list)

    async def post(self, path: str, body: object, **headers: str) -> tuple[int, Any]:
        data = body if isinstance(body, bytes | aiohttp.FormData) else json.dumps(body)
        async with self.session.post(path, data=data, headers=headers) as response:
            return response.status, json.loads(await response.read())

    def posting(self, path: str, body: object, **headers: str) -> "asyncio.Task[tuple[int, Any]]":
        return asyncio.ensure_future(self.post(path, body, **headers))

    async def exchange(self) -> FakeExchange:
        await until(lambda: self.upstream.exchanges)
        return self.upstream.exchanges[0]

    def load_tokenizer(self) -> None:
        words = {word: id for id, word in enumerate(["?", "hello", "there", "said"])}
        tokenizer = Tokenizer(models.WordLevel(words, unk_token="?"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        self.prompts.configure(Pool("m"), TokenizerSource(tokenizer.to_str(), chat_template=TEMPLATE))


@asynccontextmanager
async def open_rig(*passed: str) -> AsyncIterator[Rig]:
    """A key `bad` may use no model. Ends with every count at zero."""
    upstream = FakeUpstream()
    station, prompts, refused = Station(upstream, specs_of("ab")), Prompts(), list[int]()
    pages = web.Application(middlewares=[openai_errors])
    pages.router.add_post("/v1/files/{id:.+}", _page)

    def admit(headers: Headers, model: str) -> None:
        if ("authorization", "Bearer bad") in headers:
            raise Forbidden(f"not {model}", param="model")

    async def find(model: str, deadline: float) -> Pool:
        return (await station.registry.known(model, deadline))[0]

    station.proxy.names = names = parse_names(["alias=m"], [])
    routes = EngineRoutes(
        station.proxy.begin,
        find,
        station.registry.pools,
        admit,
        prompts,
        names,
        station.clock,
        600.0,
        refused.append,
        parse_passed(passed),
        paths_of(pages),
    )
    runner = web.AppRunner(pages, handler_cancellation=True, access_log=None)
    await runner.setup()
    assert runner.server is not None
    port = http.DataPort(station.proxy.begin, runner.server, refused.append, station.clock, http.PortLimits())
    port.engine_routes = routes
    server = await asyncio.get_running_loop().create_server(lambda: http.ClientConnection(port), "127.0.0.1", 0)
    base = "http://{}:{}".format(*server.sockets[0].getsockname())
    try:
        async with aiohttp.ClientSession(base) as session:
            yield Rig(station, upstream, prompts, session, refused)
    finally:
        server.close()
        await port.close()
        await until(lambda: not station.left_over and not port.connections)
        await runner.cleanup()
        prompts.close()


async def _page(_: web.Request) -> web.Response:
    return web.json_response("ours")


async def test_the_pools_own_tokenizer_answers() -> None:
    async with open_rig() as rig:
        rig.load_tokenizer()
        assert await rig.post("/tokenize", {"prompt": "hello x", "return_token_strs": True}) == (
            200,
            {"count": 2, "max_model_len": None, "tokens": [1, 0], "token_strs": ["hello", "?"]},
        )
        messages = [{"role": "user", "content": "hello"}]
        _, answer = await rig.post("/tokenize", {"model": "alias", "messages": messages})
        assert answer["tokens"] == [1, 3]
        _, answer = await rig.post("/tokenize", {"messages": messages, "add_generation_prompt": False})
        assert answer == {"count": 1, "max_model_len": None, "tokens": [1], "token_strs": None}
        assert await rig.post("/detokenize", {"tokens": [1, 2]}) == (200, {"prompt": "hello there"})
        assert not rig.upstream.exchanges


@pytest.mark.parametrize("has_tokenizer", [False, True])
async def test_a_replica_answers_what_we_cannot(has_tokenizer: bool) -> None:
    async with open_rig() as rig:
        if has_tokenizer:
            rig.load_tokenizer()
        body: dict[str, object] = {"messages": [{"role": "user", "content": "hello"}], "chat_template": "x"}
        asking = rig.posting("/tokenize", body | {"model": "alias"})
        exchange = await rig.exchange()
        assert exchange.attempt.path == "/tokenize"
        assert json.loads(exchange.attempt.body) == body | {"model": "m"}
        exchange.answer(200, b'{"count": 7}')
        assert await asking == (200, {"count": 7})


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", b"{", 400, None),
        ("/tokenize", {"model": "m"}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, 400, "prompt"),
        ("/tokenize", {"messages": []}, 400, "messages"),
        ("/tokenize", {"prompt": 5}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "model": "none"}, 404, "model"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": [0, -1]}, 400, "tokens[1]"),
        ("/detokenize", {"tokens": [0, 99]}, 400, "tokens[1]"),
    ],
)
async def test_what_is_wrong_is_named(path: str, body: object, status: int, param: str | None) -> None:
    async with open_rig() as rig:
        rig.load_tokenizer()
        answered, answer = await rig.post(path, body)
        assert (answered, answer["error"]["param"]) == (status, param)
        assert rig.refused == [status]


async def test_a_key_that_may_not_use_the_model_learns_nothing_of_its_tokens() -> None:
    async with open_rig() as rig:
        rig.load_tokenizer()
        status, answer = await rig.post("/tokenize", {"prompt": "hello"}, authorization="Bearer bad")
        assert (status, answer["error"]["message"]) == (403, "not m")


async def test_other_methods_are_refused() -> None:
    async with open_rig("/v1/rerank") as rig:
        for path in ("/tokenize", "/v1/rerank?a=b"):
            async with rig.session.get(path) as response:
                assert (response.status, response.headers["allow"]) == (405, "POST")


async def test_a_route_is_passed_on_with_its_query_and_its_very_bytes() -> None:
    async with open_rig("/v1/rerank, /v1/audio/*") as rig:
        body = b'{"model":"m","query":"\\u00e9","documents":["a"]}'
        asking = rig.posting("/v1/rerank?top=1", body, authorization="Bearer secret")
        exchange = await rig.exchange()
        assert (exchange.attempt.path, exchange.attempt.body) == ("/v1/rerank?top=1", body)
        assert "authorization" not in dict(exchange.attempt.headers)
        exchange.answer(200, b'{"results": []}')
        assert await asking == (200, {"results": []})
        assert rig.station.outcomes == [Outcome.OK]


async def test_a_form_reaches_the_model_behind_an_alias() -> None:
    async with open_rig("/v1/audio/*") as rig:
        form = aiohttp.FormData()
        form.add_field("file", b"RIFF\x00\xff", filename="a.wav", content_type="audio/wav")
        form.add_field("model", "alias")
        asking = rig.posting("/v1/audio/transcriptions", form)
        exchange = await rig.exchange()
        assert b"RIFF\x00\xff" in exchange.attempt.body
        assert b"\r\n\r\nm\r\n" in exchange.attempt.body
        assert dict(exchange.attempt.headers)["content-type"].startswith("multipart/form-data; boundary=")
        exchange.answer(200, b'{"text": "hi"}')
        assert await asking == (200, {"text": "hi"})


async def test_an_event_stream_of_another_form_needs_no_done() -> None:
    async with open_rig("/v1/audio/*") as rig:
        asking = asyncio.ensure_future(rig.session.post("/v1/audio/speech", data=b'{"model": "m"}'))
        exchange = await rig.exchange()
        exchange.head()
        exchange.send(b'data: {"type": "speech.audio.done"}\n\n')
        exchange.end()
        async with await asking as response:
            assert await response.read() == b'data: {"type": "speech.audio.done"}\n\n'
        assert rig.station.outcomes == [Outcome.OK]


async def test_only_what_is_named_is_passed_on_and_ours_stays_ours() -> None:
    async with open_rig("/v1/*") as rig:
        assert await rig.post("/v1/files/a/b", b"") == (200, "ours")
        status, _ = await rig.post("/other", b"{}")
        assert status == 404
        assert not rig.upstream.exchanges


async def test_where_several_models_are_served_one_must_be_named() -> None:
    async with open_rig("/v1/rerank") as rig:
        rig.station.registry._catalog.pools["n"] = Pool("n")
        for path, body in (("/v1/rerank", {}), ("/tokenize", {"prompt": "a"})):
            status, answer = await rig.post(path, body)
            assert (status, answer["error"]["param"]) == (400, "model")


async def test_a_client_that_leaves_takes_its_request_along() -> None:
    async with open_rig("/v1/rerank") as rig:
        asking = rig.posting("/v1/rerank", {"model": "m"})
        exchange = await rig.exchange()
        asking.cancel()
        await until(lambda: rig.station.outcomes == [Outcome.CLIENT_GONE])
        assert exchange.is_aborted


@pytest.mark.parametrize("text", ["rerank", "/", "/*", "/v1/a b", "/v1/*/x", "", "/v1/a?b"])
def test_a_wrong_path_is_quoted(text: str) -> None:
    with pytest.raises(ValueError, match="is not of the form"):
        parse_passed([text])
