"""Requests as prompts, with a tokenizer and without one."""

import asyncio
import threading
from array import array
from collections.abc import Coroutine, Iterable
from typing import Any

import pytest
from tokenizers import Tokenizer

from engine.fetch import fetch
from engine.tokenizer import Tokenizer as EngineTokenizer
from pointsman.blockhash import block_hashes
from router.core import Pool, Prompt, Request, Surface
from router.errors import InvalidRequest
from router.prefix.reader import Prompts
from router.prefix.source import SourceError, TokenizerSource
from router.prefix.template import ChatTemplate
from router.prefix.tokens import PromptTokenizer

Message = dict[str, Any]
POOL = Pool("fox")


def user(content: object) -> Message:
    return {"role": "user", "content": content}


def chat(*messages: Message, **fields: Any) -> Request:
    return Request("r", Surface.CHAT, "fox", b"", 0.0, 1.0, messages=messages, **fields)


def completion(prompt: object, **fields: Any) -> Request:
    return Request("r", Surface.COMPLETIONS, "fox", b"", 0.0, 1.0, prompt=prompt, **fields)


def at_once(reading: Coroutine[Any, Any, Prompt]) -> Prompt:
    """The prompt, without an event loop: fails where anything is waited for."""
    try:
        reading.send(None)
    except StopIteration as stop:
        prompt: Prompt = stop.value
        return prompt
    raise AssertionError("it awaited")


def read(prompts: Prompts, request: Request, adapter: str | None = None) -> Prompt:
    prompt = prompts.read_now(request, POOL, adapter)
    assert prompt is not None
    assert at_once(prompts.read(request, POOL, adapter)) == prompt
    return prompt


def num_common(one: Prompt, other: Prompt) -> int:
    pairs = zip(one.block_hashes, other.block_hashes, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one.block_hashes), len(other.block_hashes)))


@pytest.fixture
def prompts(served: dict[str, Any]) -> Prompts:
    prompts = Prompts()
    prompts.configure(POOL, TokenizerSource.from_served(served))
    return prompts


def test_a_chat_is_rendered_tokenized_and_hashed_as_the_engine_would(prompts: Prompts, tokenizer_json: str) -> None:
    text = (
        "<|im_start|>system\nYou are a fox<|im_end|>\n<|im_start|>user\nHello there<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = Tokenizer.from_str(tokenizer_json).encode(text, add_special_tokens=False).ids
    prompt = read(prompts, chat(user("Hello there"), cache_salt="s"), adapter="blue")
    assert prompt.num_tokens == len(ids)
    assert list(prompt.block_hashes) == block_hashes(ids, 16, adapter="blue", salt="s")
    assert prompt.is_exact


def test_a_next_turn_begins_with_the_blocks_of_the_one_before(prompts: Prompts) -> None:
    turn = user("The quick brown fox " * 20)
    first, second = chat(turn), chat(turn, {"role": "assistant", "content": "dog"}, user("and then?"))
    assert num_common(read(prompts, first), read(prompts, second)) == len(read(prompts, first).block_hashes) > 3


def test_the_template_tokens_are_what_every_chat_begins_with(prompts: Prompts, tokenizer_json: str) -> None:
    encode = Tokenizer.from_str(tokenizer_json).encode
    shared = len(encode("<|im_start|>system\nYou are a fox<|im_end|>\n<|im_start|>user\n").ids)
    assert read(prompts, chat(user("Hello"))).num_template_tokens == shared
    assert read(prompts, chat(user("(other"))).num_template_tokens == shared
    own_system = read(prompts, chat({"role": "system", "content": "Be brief"}, user("Hello")))
    assert own_system.num_template_tokens == len(encode("<|im_start|>system\n").ids)
    assert read(prompts, completion("Hello")).num_template_tokens == 0


@pytest.mark.parametrize("has_tokenizer", [True, False])
def test_adapter_salt_tools_and_images_never_share_a_block(prompts: Prompts, has_tokenizer: bool) -> None:
    reader = prompts if has_tokenizer else Prompts()
    text = "The quick brown fox jumps over the lazy dog. " * 10
    images = [[{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}] for url in "ab"]
    plain = read(reader, chat(user(text)))
    assert num_common(plain, read(reader, chat(user(text)))) == len(plain.block_hashes) > 6
    assert num_common(plain, read(reader, chat(user(text), cache_salt="s"))) == 0
    assert num_common(plain, read(reader, chat(user(text)), adapter="blue")) == 0
    assert num_common(*(read(reader, chat(user(image))) for image in images)) <= 2
    if not has_tokenizer:
        assert num_common(plain, read(reader, chat(user(text), template_options={"tools": [{"name": "f"}]}))) == 0


def test_what_stands_before_an_image_is_still_shared(prompts: Prompts) -> None:
    text = {"type": "text", "text": "The quick brown fox jumps over the lazy dog. " * 10}
    one, other = (
        read(prompts, chat(user([text, {"type": "image_url", "image_url": {"url": url}}, text]))) for url in "ab"
    )
    assert 5 < num_common(one, other) < len(one.block_hashes) - 5
    assert not one.is_exact


def test_images_that_the_template_leaves_out_part_the_chats_from_the_start(served: dict[str, Any]) -> None:
    prompts = Prompts()
    served["chat_template"] = "{{ 'the same for all chats ' * 9 }}"
    prompts.configure(POOL, TokenizerSource.from_served(served))
    one, other = (read(prompts, chat(user([{"type": "image_url", "image_url": {"url": url}}]))) for url in "ab")
    assert len(one.block_hashes) > 2
    assert num_common(one, other) == 0


def test_a_chat_that_the_template_refuses_is_read_as_text_and_runs(served: dict[str, Any]) -> None:
    prompts = Prompts()
    served["chat_template"] = "{% if messages | length > 1 %}{{ raise_exception('one only') }}{% endif %}hi"
    prompts.configure(POOL, TokenizerSource.from_served(served))
    refused = read(prompts, chat(user("a"), user("b")))
    assert not refused.is_exact
    assert refused == read(Prompts(), chat(user("a"), user("b")))
    assert read(prompts, chat(user("a"))).is_exact


def test_a_template_that_refuses_simple_chats_has_no_template_tokens(served: dict[str, Any]) -> None:
    prompts = Prompts()
    served["chat_template"] = "{% if not tools %}{{ raise_exception('tools!') }}{% endif %}{{ messages[0].content }}"
    prompts.configure(POOL, TokenizerSource.from_served(served))
    assert read(prompts, chat(user("Hello"), template_options={"tools": [1]})).num_template_tokens == 0


@pytest.mark.parametrize(
    ("prompt", "same_as"),
    [(["Hello there", "other"], "Hello there"), ([5, 6, 7], [5, 6, 7]), ([[5, 6], [7]], [5, 6])],
)
def test_of_several_prompts_the_first_is_read(prompts: Prompts, prompt: object, same_as: object) -> None:
    assert read(prompts, completion(prompt)) == read(prompts, completion(same_as))


def test_a_completion_is_tokenized_as_it_is(prompts: Prompts, tokenizer_json: str) -> None:
    text = "The quick brown fox <|im_end|> Hello there"
    ids = Tokenizer.from_str(tokenizer_json).encode(text).ids
    assert list(read(prompts, completion(text)).block_hashes) == block_hashes(ids, 16)
    assert read(prompts, completion(ids)) == read(prompts, completion(text))


@pytest.mark.parametrize("prompt", [None, 7, {}, [None], [-1], [2**32], [1, "a"], [[1.5]]])
def test_a_prompt_of_no_known_form_is_named(prompts: Prompts, prompt: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(prompts, completion(prompt))
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("prompt", ["", [], [[], [1]], [""]])
def test_an_empty_prompt_has_no_tokens_and_no_blocks(prompts: Prompts, prompt: object) -> None:
    assert read(prompts, completion(prompt)) == Prompt(num_tokens=0, block_hashes=array("Q"), block_size=16)


@pytest.mark.parametrize("has_tokenizer", [True, False])
@pytest.mark.parametrize(("request_", "field"), [(chat(user("a\ud800")), "messages"), (completion("\udfff"), "prompt")])
def test_a_lone_surrogate_is_the_clients_fault(
    prompts: Prompts, has_tokenizer: bool, request_: Request, field: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(prompts if has_tokenizer else Prompts(), request_)
    assert caught.value.param == field


def test_without_a_tokenizer_text_is_hashed_and_lengths_are_guesses() -> None:
    prompts = Prompts()
    long, ids = read(prompts, chat(user("word " * 100))), read(prompts, completion(list(range(40))))
    assert not long.is_exact
    assert 110 < long.num_tokens < 140
    assert read(prompts, completion("word " * 100)).num_tokens == 125
    picture = user([{"type": "image_url", "image_url": {"url": "data:" + "A" * 10_000}}])
    assert read(prompts, chat(picture)).num_tokens < 30
    assert (ids.is_exact, list(ids.block_hashes)) == (True, block_hashes(range(40), 16))


def test_without_a_template_a_chat_is_read_as_text(served: dict[str, Any]) -> None:
    prompts = Prompts()
    prompts.configure(POOL, TokenizerSource.from_served(served | {"chat_template": None}))
    assert read(prompts, chat(user("Hello"))) == read(Prompts(), chat(user("Hello")))
    assert read(prompts, completion("Hello")).is_exact


def test_pools_are_read_each_in_its_own_way(prompts: Prompts) -> None:
    other = at_once(prompts.read(chat(user("Hello")), Pool("other"), None))
    assert not other.is_exact
    assert (prompts.has_tokenizer(POOL), prompts.has_tokenizer(Pool("other"))) == (True, False)
    assert repr(prompts).startswith("<Prompts of 1 pools, <KnownTexts")


@pytest.mark.parametrize("field", ["tokenizer", "chat_template"])
def test_a_source_that_cannot_be_used_leaves_the_pool_as_it_was(
    prompts: Prompts, served: dict[str, Any], field: str
) -> None:
    before = read(prompts, chat(user("Hello")))
    broken = {"tokenizer": {"model": {}}, "chat_template": "{% if %}"}[field]
    with pytest.raises(SourceError, match=f"`{field}`"):
        prompts.configure(POOL, TokenizerSource.from_served(served | {field: broken}))
    assert read(prompts, chat(user("Hello"))) == before


class CountingTokenizer(PromptTokenizer):
    """A real tokenizer that tells which texts it was given, in which thread, and waits at its gate."""

    def __init__(self, tokenizer_json: str) -> None:
        self.seen: list[str] = []
        self.threads: set[int] = set()
        self.gate = threading.Event()
        self.gate.set()
        super().__init__(tokenizer_json)

    def encode_all(self, texts: Iterable[bytes]) -> "list[array[int]]":
        taken = list(texts)
        self.seen += [text.decode() for text in taken]
        self.threads.add(threading.get_ident())
        self.gate.wait(20)
        return super().encode_all(taken)


@pytest.fixture
def counting(served: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[CountingTokenizer]:
    """The tokenizers that readers configured from now on have."""
    made: list[CountingTokenizer] = []

    def make(tokenizer_json: str) -> CountingTokenizer:
        made.append(CountingTokenizer(tokenizer_json))
        return made[-1]

    monkeypatch.setattr("router.prefix.reading.PromptTokenizer", make)
    return made


def test_only_text_not_seen_before_is_tokenized(served: dict[str, Any], counting: list[CountingTokenizer]) -> None:
    prompts = Prompts()
    prompts.configure(POOL, TokenizerSource.from_served(served))
    read(prompts, chat(user("one")))
    counting[0].seen.clear()
    read(prompts, chat(user("one"), {"role": "assistant", "content": "two"}, user("one")))
    assert counting[0].seen == [
        "<|im_end|>\n<|im_start|>assistant\ntwo",
        "<|im_end|>\n<|im_start|>user\none",
        "<|im_end|>\n<|im_start|>assistant\n",
    ]


async def test_much_new_text_is_tokenized_in_a_thread_and_little_in_place(
    served: dict[str, Any], counting: list[CountingTokenizer]
) -> None:
    prompts, here = Prompts(inline_bytes=100), threading.get_ident()
    prompts.configure(POOL, TokenizerSource.from_served(served))
    counting[0].threads.clear()
    turn = user("Hello there! " * 20)
    long = chat(turn)
    assert prompts.read_now(long, POOL, None) is None
    prompt = await prompts.read(long, POOL, None)
    assert here not in counting[0].threads
    assert read(prompts, long) == prompt
    read(prompts, chat(turn, user("short")))
    assert here in counting[0].threads
    prompts.close()


async def test_a_read_that_is_cancelled_while_it_waits_for_a_thread_leaves_no_trace(
    served: dict[str, Any], counting: list[CountingTokenizer]
) -> None:
    prompts = Prompts(inline_bytes=10)
    prompts.configure(POOL, TokenizerSource.from_served(served))
    counting[0].gate.clear()
    requests = [chat(user(f"{name} {name}")) for name in ("Alice", "Bob", "Carol")]
    readings = [asyncio.create_task(prompts.read(request, POOL, None)) for request in requests]
    await asyncio.sleep(0)
    readings[2].cancel()
    with pytest.raises(asyncio.CancelledError):
        await readings[2]
    counting[0].gate.set()
    await asyncio.gather(*readings[:2])
    seen = "".join(counting[0].seen)
    assert ("Alice" in seen, "Bob" in seen, "Carol" in seen) == (True, True, False)
    assert await prompts.read(requests[2], POOL, None) == read(prompts, requests[2])
    prompts.close()


async def test_one_long_text_that_many_send_at_once_is_tokenized_once(
    served: dict[str, Any], counting: list[CountingTokenizer]
) -> None:
    prompts = Prompts(cache_bytes=1, inline_bytes=300)
    prompts.configure(POOL, TokenizerSource.from_served(served))
    counting[0].gate.clear()
    counting[0].seen.clear()
    system = {"role": "system", "content": "The quick brown fox " * 100}
    requests = [chat(system, user(name)) for name in ("Alice", "Alice", "Bob")]
    readings = [asyncio.create_task(prompts.read(request, POOL, None)) for request in requests]
    await asyncio.sleep(0)
    readings[0].cancel()
    counting[0].gate.set()
    _, one, other = await asyncio.gather(*readings, return_exceptions=True)
    assert sum(seen.count("quick") for seen in counting[0].seen) == 100
    fresh = Prompts()
    fresh.configure(POOL, TokenizerSource.from_served(served))
    for request, prompt in zip(requests[1:], (one, other), strict=True):
        assert prompt == await fresh.read(request, POOL, None)
    prompts.close()


def test_the_template_is_given_the_options_of_the_request(served: dict[str, Any]) -> None:
    prompts = Prompts()
    prompts.configure(POOL, TokenizerSource.from_served(served))
    template = ChatTemplate(served["chat_template"], {})
    bare = chat(user("Hello"), template_options={"add_generation_prompt": False})
    text = template.render([user("Hello")], {"add_generation_prompt": False})
    assert read(prompts, bare).num_tokens == read(prompts, completion(text)).num_tokens


CONVERSATIONS: list[list[Message]] = [
    [user("What is the capital of France?")],
    [user("Hi"), {"role": "assistant", "content": "Hello! How can I help?"}, user("Tell me about 1234 trains.")],
    [{"role": "system", "content": "You are terse."}, user("Why?")],
    [user("naïve 東京 🚂\u200d\n\n  tabs\tand   spaces  ")],
    [user("A <|im_end|> in the text <|im_start|>user\n of the client, and <|endoftext|>")],
    [user([{"type": "text", "text": "one part"}, {"type": "text", "text": "another"}]), {"role": "assistant"}],
    [user("")],
    [user("def f(x):\n    return x ** 2  # squares\n" * 200)],
]


@pytest.mark.slow
async def test_with_the_real_model_the_router_counts_and_hashes_as_the_engine_does() -> None:
    tokenizer = await asyncio.to_thread(lambda: EngineTokenizer.load(fetch("smollm2-135m-instruct")))
    prompts = Prompts()
    prompts.configure(POOL, TokenizerSource.from_served(tokenizer.served()))
    for conversation in CONVERSATIONS * 2:
        for has_prompt in (True, False):
            ids = tokenizer.encode_chat(conversation, add_generation_prompt=has_prompt)
            request = chat(*conversation, template_options={"add_generation_prompt": has_prompt})
            prompt = await prompts.read(request, POOL, None)
            assert (prompt.num_tokens, list(prompt.block_hashes)) == (len(ids), block_hashes(ids, 16))
    default_system = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    )
    shared = len(tokenizer.encode(default_system + "<|im_start|>user\n"))
    assert (await prompts.read(chat(user("Hi")), POOL, None)).num_template_tokens == shared
    text = "The railway worker sets the points.<|im_end|>" * 30
    completed = await prompts.read(completion(text), POOL, None)
    assert list(completed.block_hashes) == block_hashes(tokenizer.encode(text), 16)
    prompts.close()
