from pathlib import Path
from typing import Any

import pytest

from engine.server.errors import ApiError
from engine.server.prompts import Prompts
from engine.tokenizer import Tokenizer
from tests.engine.model.gguf_writer import write_gguf
from tests.engine.model.tiny_tokenizer import METADATA, TOKENS
from tests.engine.server.bodies import chat


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Prompts:
    path: Path = write_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", METADATA, {})
    return Prompts(Tokenizer.load(path), len(TOKENS))


async def refused(prompts: Prompts, **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await prompts.of_chat(chat(**fields))
    assert caught.value.status == 400
    return caught.value


async def test_a_chat_is_rendered_with_its_generation_prompt_unless_told_otherwise(prompts: Prompts) -> None:
    messages = [{"role": "user", "content": "hello"}]
    with_prompt = await prompts.of_chat(chat(messages=messages))
    without = await prompts.of_chat(chat(messages=messages, add_generation_prompt=False))
    assert with_prompt[: len(without)] == without != with_prompt


async def test_a_message_without_a_role_is_refused_by_place(prompts: Prompts) -> None:
    error = await refused(prompts, messages=[{"role": "user", "content": "a"}, {"content": "b"}])
    assert error.param == "messages[1].role"


@pytest.mark.parametrize("name", ["messages", "tools", "documents", "add_generation_prompt"])
async def test_the_template_cannot_be_given_what_the_request_decides(prompts: Prompts, name: str) -> None:
    error = await refused(prompts, chat_template_kwargs={name: []})
    assert error.param == "chat_template_kwargs"


async def test_a_message_is_either_continued_or_answered(prompts: Prompts) -> None:
    error = await refused(prompts, continue_final_message=True, add_generation_prompt=True)
    assert error.param == "continue_final_message"


@pytest.mark.parametrize("prompt", ["", [], [len(TOKENS)]])
async def test_a_text_of_nothing_and_ids_of_no_token_are_refused(prompts: Prompts, prompt: Any) -> None:
    with pytest.raises(ApiError) as caught:
        await prompts.of_text(prompt, "input")
    assert caught.value.param == "input"


async def test_a_lone_surrogate_is_the_clients_fault(prompts: Prompts) -> None:
    with pytest.raises(ApiError, match="surrogate"):
        await prompts.of_text("\ud800", "prompt")
