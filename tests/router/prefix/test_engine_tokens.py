"""Prompts that an engine tokenizes itself: asked once, kept within bounds, and never waited for in vain."""

import asyncio
from array import array
from typing import Any

import pytest

from pointsman.blockhash import block_hashes
from router.core import Pool
from router.prefix import engine_tokens
from router.prefix.blocks import CacheScope
from router.prefix.engine_tokens import ENTRY_BYTES, TOKEN_BYTES, Body, EngineTokens, ids_in, tokenize_body
from router.prefix.reader import Prompts
from tests.router.nouns import FakeClock, make_request

SCOPE = CacheScope.of(16, None, None)
HELLO = [{"role": "user", "content": "hello"}]


class FakeEngine:
    """Says so many tokens, or nothing."""

    def __init__(self, num_tokens: int = 40) -> None:
        self.ids: array[int] | None = array("I", range(num_tokens))
        self.asked: list[Body] = []
        self.is_slow = False

    async def ask(self, body: Body) -> "array[int] | None":
        self.asked.append(body)
        if self.is_slow:
            await asyncio.Event().wait()
        return self.ids


async def test_a_prompt_is_asked_for_once_and_hashed_as_ours_are() -> None:
    engine = FakeEngine()
    tokens = EngineTokens(engine.ask, 10_000)
    request = make_request(messages=HELLO)
    assert tokens.find(request, SCOPE) is None
    prompt = await tokens.read(request, SCOPE)
    assert prompt is not None
    assert (prompt.num_tokens, prompt.is_exact) == (40, True)
    assert list(prompt.block_hashes) == block_hashes(range(40), 16)
    assert await tokens.read(request, SCOPE) == prompt == tokens.find(request, SCOPE)
    assert len(engine.asked) == 1
    salted = await tokens.read(request, CacheScope.of(16, None, "pepper"))
    assert salted is not None
    assert list(salted.block_hashes) != list(prompt.block_hashes)


async def test_an_engine_that_does_not_answer_is_left_alone_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_tokens, "TIMEOUT_S", 0.01)
    engine, clock = FakeEngine(), FakeClock()
    tokens = EngineTokens(engine.ask, 10_000, clock)
    engine.is_slow = True
    assert await tokens.read(make_request(messages=HELLO), SCOPE) is None
    engine.is_slow = False
    assert await tokens.read(make_request(messages=HELLO), SCOPE) is None
    assert len(engine.asked) == 1
    clock.now += 10
    assert await tokens.read(make_request(messages=HELLO), SCOPE) is not None
    engine.ids = None
    assert await tokens.read(make_request(prompt="other"), SCOPE) is None


async def test_what_is_kept_is_bounded_and_the_longest_unused_goes() -> None:
    engine = FakeEngine(100)
    tokens = EngineTokens(engine.ask, 3 * (ENTRY_BYTES + 100 * TOKEN_BYTES))
    first, *others = [make_request(prompt=f"prompt {at}") for at in range(4)]
    for request in (first, *others[:2]):
        await tokens.read(request, SCOPE)
    tokens.find(first, SCOPE)
    await tokens.read(others[2], SCOPE)
    assert tokens.find(first, SCOPE) is not None
    assert tokens.find(others[0], SCOPE) is None
    assert repr(tokens) == "<EngineTokens 3 prompts>"


def test_the_engine_is_asked_with_all_that_shapes_the_prompt() -> None:
    options = {"tools": [{"type": "function"}], "enable_thinking": False}
    body = tokenize_body(make_request(messages=HELLO, template_options=options))
    assert body == {
        "model": "m",
        "messages": HELLO,
        "add_generation_prompt": True,
        "tools": [{"type": "function"}],
        "chat_template_kwargs": {"enable_thinking": False},
    }
    assert tokenize_body(make_request(prompt="text")) == {"model": "m", "prompt": "text"}
    last = tokenize_body(make_request(messages=HELLO, template_options={"add_generation_prompt": False}))
    assert last["add_generation_prompt"] is False


@pytest.mark.parametrize(
    ("answer", "ids"),
    [
        (b'{"count": 2, "max_model_len": 9, "tokens": [1, 2]}', [1, 2]),
        (b'{"tokens": [-1]}', None),
        (b'{"tokens": "x"}', None),
        (b"[]", None),
        (b"<html>", None),
        (b"{}", None),
    ],
)
def test_an_answer_is_its_ids_or_none(answer: bytes, ids: list[int] | None) -> None:
    found = ids_in(answer)
    assert (None if found is None else found.tolist()) == ids


async def test_a_pool_without_a_tokenizer_may_have_its_engine_asked() -> None:
    engine, prompts, pool = FakeEngine(), Prompts(), Pool("m")
    prompts.ask(pool, EngineTokens(engine.ask, 10_000))
    assert prompts.has_tokenizer(pool)
    request: Any = make_request(messages=HELLO)
    assert prompts.read_now(request, pool, None) is None
    prompt = await prompts.read(request, pool, None)
    assert prompt.is_exact
    assert prompts.read_now(request, pool, None) == prompt
    by_ids = await prompts.read(make_request(messages=None, prompt=list(range(40))), pool, None)
    assert by_ids.block_hashes == prompt.block_hashes
    assert len(engine.asked) == 1
    engine.ids = None
    as_text = await prompts.read(make_request(prompt="never seen"), pool, None)
    assert not as_text.is_exact
