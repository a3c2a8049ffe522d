"""A small real tokenizer, trained here, and a ChatML template with a default system prompt."""

import json
from functools import lru_cache
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from router.prefix.tokens import PromptTokenizer

CORPUS = [
    "The quick brown fox jumps over the lazy dog. system user assistant You are helpful. Hello there, friend! 123"
]
CHATML = (
    "{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}<|im_start|>system\nYou are a fox<|im_end|>\n{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.fixture(scope="session")
def tokenizer_json() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|im_start|>", "<|im_end|>", "<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    text: str = tokenizer.to_str()
    return text


@pytest.fixture(scope="session")
def tokenizer(tokenizer_json: str) -> PromptTokenizer:
    return PromptTokenizer(tokenizer_json)


@pytest.fixture(scope="session")
def load_once() -> Any:
    """Loads a tokenizer for the first test that needs it; it has no state that tests could see."""
    return lru_cache(PromptTokenizer)


@pytest.fixture
def served(tokenizer_json: str, load_once: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What an engine answers at GET /pointsman/tokenizer."""
    monkeypatch.setattr("router.prefix.reading.PromptTokenizer", load_once)
    return {
        "model": "fox",
        "block_size": 16,
        "max_model_len": 2048,
        "tokenizer": json.loads(tokenizer_json),
        "chat_template": CHATML,
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
    }
