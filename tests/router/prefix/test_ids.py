"""Prompts as ids and outputs as text, as the tokenizer's own library has them."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from router.core import Pool
from router.errors import InvalidRequest
from router.prefix.ids import PromptIds, TokenText
from router.prefix.reader import Prompts
from router.prefix.source import TokenizerSource
from router.prefix.tokens import PromptTokenizer

POOL = Pool("m")
CHAT = [{"role": "system", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "fox"}]}]


async def nothing_to_wait_for(_: Pool) -> None:
    return


@pytest.fixture
def ids(served: dict[str, Any]) -> PromptIds:
    prompts = Prompts()
    prompts.configure(POOL, TokenizerSource.from_served(served))
    return PromptIds(prompts, nothing_to_wait_for)


def reference(tokenizer_json: str, text: str, *, with_special: bool = False) -> list[int]:
    return list(Tokenizer.from_str(tokenizer_json).encode(text, add_special_tokens=with_special).ids)


def test_a_chat_is_tokenized_as_its_template_renders_it(ids: PromptIds, tokenizer_json: str) -> None:
    told = "<|im_start|>system\na<|im_end|>\n<|im_start|>user\nfox<|im_end|>\n"
    for options, end in (({}, "<|im_start|>assistant\n"), ({"add_generation_prompt": False}, "")):
        found = ids.now(POOL, CHAT, options)
        assert found is not None
        assert list(found) == reference(tokenizer_json, told + end)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(["The fox", "<|im_start|>", "\n", "é", "🚂", " 12"]), max_size=8).map("".join))
def test_a_text_is_tokenized_whole(tokenizer: PromptTokenizer, tokenizer_json: str, text: str) -> None:
    prompts = Prompts()
    prompts._readings["m"] = type("Only", (), {"tokenizer": tokenizer})  # type: ignore[assignment]
    ids = PromptIds(prompts, nothing_to_wait_for)
    for with_special in (False, True):
        found = ids.now(POOL, text, {"add_special_tokens": with_special})
        assert found is not None
        assert list(found) == reference(tokenizer_json, text, with_special=with_special)


def test_an_image_has_no_ids(ids: PromptIds) -> None:
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    assert ids.now(POOL, image, {}) is None


def test_a_lone_surrogate_is_named(ids: PromptIds) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ids.now(POOL, "a\ud800", {})
    assert caught.value.param == "prompt"
    with pytest.raises(InvalidRequest) as caught:
        ids.now(POOL, [{"role": "user", "content": "a\ud800"}], {})
    assert caught.value.param == "messages"


async def test_a_tokenizer_that_is_being_loaded_is_waited_for(served: dict[str, Any]) -> None:
    prompts, is_loaded = Prompts(), asyncio.Event()

    async def loaded(_: Pool) -> None:
        await is_loaded.wait()

    ids = PromptIds(prompts, loaded)
    assert ids.now(POOL, "a", {}) is None
    assert ids.decoder(POOL) is None
    asking = asyncio.ensure_future(ids.soon(POOL, CHAT, {}))
    prompts.configure(POOL, TokenizerSource.from_served(served))
    is_loaded.set()
    found = await asking
    assert found is not None
    assert found == ids.now(POOL, CHAT, {})
    prompts.close()


async def test_a_tokenizer_that_never_comes_gives_none() -> None:
    prompts = Prompts()
    assert await PromptIds(prompts, nothing_to_wait_for).soon(POOL, "a", {}) is None
    prompts.close()


TEXTS = st.lists(st.sampled_from(["The fox", " ", "é", "🌈", "日本", "\n", "x"]), max_size=10).map("".join)


@settings(max_examples=60, deadline=None)
@given(TEXTS, st.integers(1, 4))
def test_output_comes_in_whole_characters_and_is_all_there(
    tokenizer: PromptTokenizer, tokenizer_json: str, text: str, step: int
) -> None:
    spoken, tokens = TokenText(tokenizer), reference(tokenizer_json, text)
    pieces = [spoken.push(tokens[at : at + step]) for at in range(0, len(tokens), step)]
    assert "".join(pieces) + spoken.flush() == text
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


def test_a_character_that_is_not_finished_is_shown_as_such(tokenizer: PromptTokenizer, tokenizer_json: str) -> None:
    spoken, tokens = TokenText(tokenizer), reference(tokenizer_json, "a🌈")
    assert spoken.push(tokens[:-1]) == "a"
    assert set(spoken.flush()) == {"\N{REPLACEMENT CHARACTER}"}
    assert spoken.flush() == ""


def test_special_tokens_are_no_text(tokenizer: PromptTokenizer, tokenizer_json: str) -> None:
    spoken = TokenText(tokenizer)
    assert spoken.push(reference(tokenizer_json, "a<|im_end|>b")) + spoken.flush() == "ab"
