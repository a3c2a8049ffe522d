"""Pools get their tokenizers, and these are compared with what engines say themselves."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from router.core import Pool
from router.prefix.index import BlockIndex
from router.prefix.knowledge import Knowing, Knowledge
from router.prefix.reader import Prompts
from router.spec import ReplicaSpec
from router.tokenizing import Tokenizers
from tests.router.nouns import make_replica, make_request
from tests.router.prefix.conftest import CHATML, CORPUS
from tests.router.served import served

HELLO = [{"role": "user", "content": "Hello there"}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    marks = ["<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=marks, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHATML}))
    return tmp_path


class Rig:
    """One pool and a replica of it, at a server that answers /tokenize as the test says."""

    def __init__(self, url: str, tokenizer: str | None, engine: str | None = "vllm") -> None:
        self.pool = Pool("fox")
        self.prompts = Prompts()
        self.knowledge = Knowledge(BlockIndex(2**20), self.prompts.has_tokenizer)
        self.tokenizers = Tokenizers(self.prompts, self.knowledge, logging.getLogger("test"), 10_000)
        self.replica = make_replica("a", pool=self.pool, engine=engine)
        self.replica.spec = ReplicaSpec(url, api_key="key", tokenizer=tokenizer)

    def identified(self, document: dict[str, object] | None = None) -> None:
        self.tokenizers.identified(self.replica, self.pool, document)

    def reason(self) -> str:
        return self.knowledge.of(self.replica).reason


@asynccontextmanager
async def running(rig: Rig) -> AsyncIterator[None]:
    task = asyncio.create_task(rig.tokenizers.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  (a thread loads)
            await asyncio.sleep(0.005)


def engine_of(ids: Callable[[dict[str, Any]], list[int] | None], asked: list[str | None]) -> web.Application:
    async def tokenize(request: web.Request) -> web.Response:
        asked.append(request.headers.get("authorization"))
        found = ids(await request.json())
        return web.Response(status=404) if found is None else web.json_response({"tokens": found})

    app = web.Application()
    app.router.add_post("/tokenize", tokenize)
    return app


async def test_a_tokenizer_from_a_path_is_loaded_and_agrees_with_the_engine(folder: Path) -> None:
    asked: list[str | None] = []
    tokens: dict[str, list[int]] = {}

    def ids(body: dict[str, Any]) -> list[int] | None:
        return tokens[json.dumps(body["messages"])]

    from tokenizers import Tokenizer

    from router.prefix.probe import CHATS
    from router.prefix.template import ChatTemplate

    encoder, template = Tokenizer.from_file(str(folder / "tokenizer.json")), ChatTemplate(CHATML, {})
    for chat in CHATS:
        tokens[json.dumps(chat)] = encoder.encode(template.render(chat, {}), add_special_tokens=False).ids
    async with served(engine_of(ids, asked)) as url:
        rig = Rig(url, str(folder))
        rig.identified()
        assert rig.tokenizers.is_loading
        async with running(rig):
            await until(lambda: len(asked) == len(CHATS))
            assert not rig.tokenizers.is_loading
            assert rig.prompts.has_tokenizer(rig.pool)
    assert asked == ["Bearer key"] * len(CHATS)
    assert rig.reason() == "KV events are absent"


async def test_a_tokenizer_that_is_not_the_engine_s_is_reported(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with served(engine_of(lambda _: [1, 2, 3], [])) as url:
        rig = Rig(url, str(folder))
        async with running(rig):
            rig.identified()
            await until(lambda: "its own /tokenize makes 3 tokens" in rig.reason())
    assert rig.knowledge.of(rig.replica).knowing is Knowing.APPROXIMATE
    assert "the tokenizer is not the engine's" in caplog.text


async def test_an_engine_that_cannot_be_asked_is_believed(folder: Path) -> None:
    asked: list[str | None] = []
    async with served(engine_of(lambda _: None, asked)) as url:
        rig = Rig(url, str(folder))
        async with running(rig):
            rig.identified()
            await until(lambda: asked and not rig.tokenizers.is_loading)
    assert rig.reason() == "KV events are absent"


async def test_a_tokenizer_that_cannot_be_had_is_reported_and_prompts_are_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig("http://127.0.0.1:9", "/nothing/here")
    async with running(rig):
        rig.identified()
        await until(lambda: not rig.tokenizers.is_loading)
    assert "prompts are hashed as text" in caplog.text
    assert rig.knowledge.of(rig.replica).knowing is Knowing.BLIND


async def test_an_engine_s_own_tokenizer_may_be_used() -> None:
    asked: list[str | None] = []
    async with served(engine_of(lambda _: list(range(40)), asked)) as url:
        rig = Rig(url, "engine")
        async with running(rig):
            rig.identified()
            await until(lambda: not rig.tokenizers.is_loading)
            prompt = await rig.prompts.read(make_request(messages=HELLO), rig.pool, None)
    assert (prompt.num_tokens, prompt.is_exact) == (40, True)
    assert repr(rig.tokenizers) == "<Tokenizers of 1 pools>"
