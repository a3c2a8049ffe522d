"""Text to ids and back, as the tokenizer's own library has it."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from router.errors import InvalidRequest
from router.prefix.known import KnownTexts
from router.prefix.reading import Reading
from router.prefix.source import TokenizerSource
from router.prefix.texts import ids_of_chat, ids_of_text, spelled, text_of
from router.prefix.tokens import PromptTokenizer


@pytest.fixture
def reading(served: dict[str, Any]) -> Reading:
    return Reading.of(TokenizerSource.from_served(served), KnownTexts(1000))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(["The fox", "<|im_start|>", "\n", "é", "🚂", " 12"]), max_size=8).map("".join))
def test_a_text_comes_back_as_it_went(tokenizer: PromptTokenizer, tokenizer_json: str, text: str) -> None:
    reading: Any = type("Only", (), {"tokenizer": tokenizer})
    ids = ids_of_text(reading, text, with_special=False)
    assert list(ids) == Tokenizer.from_str(tokenizer_json).encode(text, add_special_tokens=False).ids
    assert text_of(reading, ids) == text
    assert len(spelled(reading, ids)) == len(ids)


def test_a_chat_is_rendered_with_its_options(reading: Reading) -> None:
    messages: list[dict[str, object]] = [
        {"role": "system", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "fox"}]},
    ]
    told = "<|im_start|>system\na<|im_end|>\n<|im_start|>user\nfox<|im_end|>\n"
    for options, end in (({}, "<|im_start|>assistant\n"), ({"add_generation_prompt": False}, "")):
        ids = ids_of_chat(reading, messages, options, with_special=False)
        assert ids is not None
        assert text_of(reading, ids) == told + end


def test_of_images_and_without_a_template_only_the_engine_knows(served: dict[str, Any], reading: Reading) -> None:
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    assert ids_of_chat(reading, image, {}, with_special=False) is None
    bare = Reading.of(TokenizerSource.from_served({**served, "chat_template": None}), KnownTexts(1000))
    assert ids_of_chat(bare, [{"role": "user", "content": "a"}], {}, with_special=False) is None


def test_what_is_wrong_is_named(reading: Reading) -> None:
    with pytest.raises(InvalidRequest) as caught:
        text_of(reading, [5, 10**6])
    assert caught.value.param == "tokens[1]"
    with pytest.raises(InvalidRequest) as caught:
        ids_of_text(reading, "a\ud800", with_special=True)
    assert caught.value.param == "prompt"
