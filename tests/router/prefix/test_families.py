"""Prompts of four families of models, rendered, tokenized and hashed as `transformers.apply_chat_template` gives them
to an engine: tools, documents, text in parts, calls, other variables. The tokenizers are small and trained here.
"""

import json
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from pointsman.blockhash import block_hashes
from router.core import Pool, Request, Surface
from router.prefix.reader import Prompts
from router.prefix.source import TokenizerSource
from tests.proto.templates import FAMILIES, SPECIAL_TOKENS
from tests.proto.test_chat_template import CALL, CALLED, CHATS, HELLO, OPTIONS, RESULT, SYSTEM

pytestmark = pytest.mark.slow

SIZE = 16
CORPUS = [
    "The quick brown fox jumps over 13 lazy dogs; it's 3.14 or 2,000?\n\tNaïve café — 你好, мир! 🦊 👩‍👩‍👧",
    json.dumps(OPTIONS) + " system user assistant tool model ipython You are a helpful fox who answers briefly.",
]
# As in GPT-4's and Llama 3's tokenizers.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MARKS = ["<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "[INST]", "[/INST]"]
SPECIAL = ["<s>", "</s>", "<unk>", "<start_of_turn>", "<end_of_turn>", *MARKS]
LONG = {"role": "user", "content": " ".join(CORPUS * 3)}
PARTS = {"role": "user", "content": [{"type": "text", "text": "first part "}, {"type": "text", "text": "second\npart"}]}


def byte_level() -> Tokenizer:
    """As of Qwen and SmolLM."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return trained(tokenizer, trainers.BpeTrainer(vocab_size=600, special_tokens=SPECIAL, initial_alphabet=alphabet))


def split_bytes() -> Tokenizer:
    """As of Llama 3: its beginning is put before a text by a post-processor too, which chats do not want twice."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    split = pre_tokenizers.Split(Regex(SPLIT), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trained(tokenizer, trainers.BpeTrainer(vocab_size=600, special_tokens=SPECIAL, initial_alphabet=alphabet))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


def byte_fallback() -> Tokenizer:
    """As of Llama 2 and Mistral: spaces are a letter, and bytes stand for letters that it has not."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    bytes_of = [f"<0x{byte:02X}>" for byte in range(256)]
    return trained(tokenizer, trainers.BpeTrainer(vocab_size=700, special_tokens=[*SPECIAL, *bytes_of]))


def unigram() -> Tokenizer:
    """As of Gemma and T5."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", behavior="merged_with_next")
    return trained(tokenizer, trainers.UnigramTrainer(vocab_size=300, special_tokens=SPECIAL, unk_token="<unk>"))


def trained(tokenizer: Tokenizer, trainer: Any) -> Tokenizer:
    trainer.show_progress = False
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    return tokenizer


PAIRS: Mapping[str, Callable[[], Tokenizer]] = {
    "chatml": byte_level,
    "headers": split_bytes,
    "inst": byte_fallback,
    "parts": unigram,
}


@cache
def family(name: str) -> tuple[Any, Prompts, Pool]:
    """Transformers' tokenizer, and ours."""
    fast: Any = import_module("transformers").PreTrainedTokenizerFast  # takes seconds, and is not typed
    tokenizer = PAIRS[name]()
    theirs = fast(tokenizer_object=tokenizer, chat_template=FAMILIES[name], unk_token="<unk>", **SPECIAL_TOKENS)
    prompts, pool = Prompts(inline_bytes=2**30), Pool(name, SIZE)
    begin, end = SPECIAL_TOKENS["bos_token"], SPECIAL_TOKENS["eos_token"]
    prompts.configure(pool, TokenizerSource(tokenizer.to_str(), FAMILIES[name], begin, end))
    return theirs, prompts, pool


def ids_of(theirs: Any, messages: list[dict[str, Any]], options: Mapping[str, Any]) -> list[int] | None:
    """None where the template refuses."""
    try:
        found = theirs.apply_chat_template(
            messages, tokenize=True, return_dict=False, **{"add_generation_prompt": True, **options}
        )
    except Exception:
        return None
    return [int(each) for each in found]


CASES = [(chat, options) for chat in [*CHATS, [LONG], [SYSTEM, LONG]] for options in OPTIONS]


@pytest.mark.parametrize("name", list(PAIRS))
def test_chats_are_the_tokens_that_transformers_makes_of_them(name: str) -> None:
    theirs, prompts, pool = family(name)
    num_equal = 0
    for chat, options in CASES:
        expected = ids_of(theirs, chat, options)
        if expected is None:
            continue
        request = Request("r", Surface.CHAT, name, b"", 0.0, 1.0, messages=chat, template_options=options)
        prompt = prompts.read_now(request, pool, None)
        assert prompt is not None
        assert prompt.num_tokens == len(expected), (chat, options)
        assert list(prompt.block_hashes) == block_hashes(expected, SIZE), (chat, options)
        assert prompt.is_exact
        num_equal += 1
    assert num_equal >= 18


@pytest.mark.parametrize("name", ["parts"])
def test_text_in_parts_goes_to_templates_that_take_parts(name: str) -> None:
    theirs, prompts, pool = family(name)
    expected = ids_of(theirs, [PARTS, *HELLO], {})
    assert expected is not None
    request = Request("r", Surface.CHAT, name, b"", 0.0, 1.0, messages=[PARTS, *HELLO])
    prompt = prompts.read_now(request, pool, None)
    assert prompt is not None
    assert list(prompt.block_hashes) == block_hashes(expected, SIZE)


@pytest.mark.parametrize("name", ["chatml", "headers"])
def test_arguments_of_calls_that_come_as_text_are_the_objects_that_templates_expect(name: str) -> None:
    theirs, prompts, pool = family(name)
    arguments = json.dumps(CALL["function"]["arguments"])  # type: ignore[index]
    as_text = {**CALLED, "tool_calls": [{**CALL, "function": {**CALL["function"], "arguments": arguments}}]}  # type: ignore[dict-item]
    expected = ids_of(theirs, [*HELLO, CALLED, RESULT], {})
    assert expected is not None
    request = Request("r", Surface.CHAT, name, b"", 0.0, 1.0, messages=[*HELLO, as_text, RESULT])
    prompt = prompts.read_now(request, pool, None)
    assert prompt is not None
    assert list(prompt.block_hashes) == block_hashes(expected, SIZE)
    assert prompt.num_tokens == len(expected)
