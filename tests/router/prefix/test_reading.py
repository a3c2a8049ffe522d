"""Chats and completions through what is known of earlier ones: always as from scratch."""

import json
import random
from array import array
from collections.abc import Mapping
from typing import Any

import pytest
from tokenizers import Tokenizer

from pointsman.blockhash import block_hashes
from router.core import Prompt
from router.prefix.blocks import CacheScope
from router.prefix.known import KnownTexts
from router.prefix.reading import Reading, Unread
from router.prefix.source import TokenizerSource
from router.prefix.template import ChatTemplate

Chat = list[dict[str, Any]]
SCOPES = [
    CacheScope(16, None, None),
    CacheScope(16, "blue", None),
    CacheScope(16, None, "salt"),
    CacheScope(32, None, None),
]
WORDS = [
    "The",
    "quick",
    "fox",
    "x1",
    "dog.",
    "it's",
    "naïve",
    "東京",
    "🚂",
    "\n",
    "\t'a",
    "  ",
    "<|im_end|>",
    "<|im_",
    "e\u0301",
]


def read(found: Prompt | Unread) -> Prompt:
    return found if isinstance(found, Prompt) else found.finish(found.tokenizer.encode_all(found.texts))


def num_new(found: Prompt | Unread) -> int:
    """Bytes that had to be tokenized."""
    return 0 if isinstance(found, Prompt) else sum(map(len, found.texts))


def text(rng: random.Random, most_words: int) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(0, most_words)))


def message(rng: random.Random, role: str) -> dict[str, Any]:
    content: Any = text(rng, rng.choice([3, 40, 600]))
    if rng.random() < 0.1:
        content = rng.choice([None, [{"type": "text", "text": content}, {"type": "text", "text": "part"}]])
    return {"role": role, "content": content} | ({"name": "kim"} if rng.random() < 0.1 else {})


def flat(chat: Chat) -> Chat:
    """With the content as one text, as templates take it."""

    def content(value: Any) -> str:
        return "\n".join(part["text"] for part in value) if isinstance(value, list) else value or ""

    return [{**each, "content": content(each["content"])} for each in chat]


class Scratch:
    """Renders, tokenizes and hashes everything anew."""

    def __init__(self, served: Mapping[str, Any], tokenizer_json: str) -> None:
        self.template = ChatTemplate(served["chat_template"], {})
        self.tokenizer = Tokenizer.from_str(tokenizer_json)

    def read_chat(self, chat: Chat, options: Mapping[str, Any], scope: CacheScope) -> tuple[int, list[int]]:
        return self.read(self.template.render(flat(chat), options), scope)

    def read(self, text: str, scope: CacheScope) -> tuple[int, list[int]]:
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        return len(ids), block_hashes(ids, scope.block_size, adapter=scope.adapter, salt=scope.salt)


@pytest.fixture
def scratch(served: dict[str, Any], tokenizer_json: str) -> Scratch:
    return Scratch(served, tokenizer_json)


def reading(served: Mapping[str, Any], max_bytes: int = 10**7) -> Reading:
    return Reading.of(TokenizerSource.from_served(served), KnownTexts(max_bytes))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("max_bytes", [10**7, 30_000, 1])
def test_growing_and_branching_chats_read_as_from_scratch(
    served: dict[str, Any], scratch: Scratch, seed: int, max_bytes: int
) -> None:
    rng, reader = random.Random(seed), reading(served, max_bytes)
    chats: list[Chat] = [[]]
    for _ in range(60):
        chat = [*rng.choice(chats)]
        chat = chat[: rng.randint(0, len(chat))]
        for role in rng.choices(["system", "user", "user", "assistant", "tool"], k=rng.randint(1, 3)):
            chat.append(message(rng, role))
        if rng.random() < 0.3 and isinstance(chat[-1]["content"], str):  # A new end of the last message.
            content = chat[-1]["content"]
            chat[-1] = {**chat[-1], "content": content[: len(content) * 7 // 8] + text(rng, 20)}
        chats.append(chat)
        scope, options = rng.choice(SCOPES), rng.choice([{}, {}, {"add_generation_prompt": False}])
        prompt = read(reader.find_chat(chat, options, scope))
        assert (prompt.num_tokens, list(prompt.block_hashes)) == scratch.read_chat(chat, options, scope)
        assert (prompt.block_size, prompt.is_exact) == (scope.block_size, True)


@pytest.mark.parametrize("seed", range(4))
def test_growing_completions_read_as_from_scratch(served: dict[str, Any], scratch: Scratch, seed: int) -> None:
    rng, reader, texts = random.Random(seed), reading(served, [10**7, 20_000][seed % 2]), [""]
    for _ in range(80):
        grown = rng.choice(texts)[: rng.randrange(6000)] + text(rng, 300)
        texts.append(grown)
        scope = rng.choice(SCOPES)
        prompt = read(reader.find_completion(grown, scope))
        assert (prompt.num_tokens, list(prompt.block_hashes)) == scratch.read(grown, scope)
        assert prompt.num_template_tokens == 0


def test_only_what_is_new_is_tokenized(served: dict[str, Any]) -> None:
    rng, reader = random.Random(1), reading(served)
    system = {"role": "system", "content": " ".join(rng.choices(["points", "track"], k=2000))}
    words = " ".join(rng.choices(["signal", "train"], k=5000))

    def new(*chat: dict[str, Any], scope: CacheScope = SCOPES[0], **options: Any) -> int:
        found = reader.find_chat(chat, options, scope)
        read(found)
        return num_new(found)

    user, answer = {"role": "user", "content": words}, {"role": "assistant", "content": "yes"}
    size = len(system["content"]) + len(words)
    assert new(system, user) > size
    assert new(system, user) == 0
    assert new(system, {"role": "user", "content": "other"}) < 100
    assert new(system, user, answer, {"role": "user", "content": "and?"}) < 200
    longer = {"role": "user", "content": words + " and more"}
    assert new(system, longer) < 2200
    assert new(system, longer, scope=SCOPES[1]) > size
    assert new({**system, "content": [{"type": "text", "text": system["content"]}]}, user) == 0
    assert len(words) < new({**system, "name": "kim"}, user, answer) < size
    assert new({**system, "name": "kim"}, user, answer, user) < len(words) + 200


def test_a_completion_that_grows_is_tokenized_from_its_last_cut(served: dict[str, Any]) -> None:
    reader, words = reading(served), "signal train " * 3000
    for length, most in ((30_000, 30_000), (30_000, 0), (30_500, 2600), (len(words), 11_000)):
        found = reader.find_completion(words[:length], SCOPES[0])
        assert num_new(found) <= most
        read(found)


def test_what_was_known_under_an_earlier_reading_is_not_found(served: dict[str, Any]) -> None:
    known = KnownTexts(10**6)
    chat = [{"role": "user", "content": "The quick brown fox"}]
    for _ in range(2):
        found = Reading.of(TokenizerSource.from_served(served), known).find_chat(chat, {}, SCOPES[0])
        assert num_new(found) > 19
        read(found)


def test_tokens_that_stand_around_each_completion_are_counted_and_hashed(
    served: dict[str, Any], tokenizer_json: str
) -> None:
    bos = {"id": "<|im_start|>", "ids": [0], "tokens": ["<|im_start|>"]}
    eos = {"id": "<|im_end|>", "ids": [1], "tokens": ["<|im_end|>"]}
    for with_end in (False, True):
        single: list[Any] = [{"SpecialToken": {"id": bos["id"], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
        single += [{"SpecialToken": {"id": eos["id"], "type_id": 0}}] * with_end
        around = {"type": "TemplateProcessing", "single": single, "pair": []}
        served["tokenizer"]["post_processor"] = around | {"special_tokens": {each["id"]: each for each in (bos, eos)}}
        reader = reading(served)
        for words in ("", "The quick brown fox " * 9, "The quick brown fox " * 90):
            ids = [0, *Tokenizer.from_str(tokenizer_json).encode(words, add_special_tokens=False).ids, *[1] * with_end]
            prompt = read(reader.find_completion(words, SCOPES[0]))
            assert (prompt.num_tokens, prompt.block_hashes) == (len(ids), array("Q", block_hashes(ids, 16)))


def test_template_tokens_are_told_for_chats_that_are_known_and_that_are_not(served: dict[str, Any]) -> None:
    reader, chats = reading(served), [[{"role": "user", "content": content}] for content in ("Hello", "(other", "")]
    first = [read(reader.find_chat(chat, {}, SCOPES[0])).num_template_tokens for chat in chats]
    assert first == [read(reader.find_chat(chat, {}, SCOPES[0])).num_template_tokens for chat in chats]
    shared = Tokenizer.from_str(json.dumps(served["tokenizer"])).encode(
        "<|im_start|>system\nYou are a fox<|im_end|>\n<|im_start|>user\n"
    )
    assert set(first) == {len(shared.ids)}
    assert repr(reader).startswith("<Reading <PromptTokenizer")
