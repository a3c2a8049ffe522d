"""Guessed tokens: whatever is guessed, what comes out is what comes out without guessing."""

from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core import EngineCore
from engine.drafts import Drafting, PromptLookup
from engine.model.kv_cache import KVCache
from engine.runner import Runner
from engine.sequence import Output, Request
from tests.engine.model.tiny_llama import tiny_config, tiny_llama
from tests.engine.requests import BLOCK_SIZE, core, request

CONFIG = tiny_config()


def test_what_followed_the_same_end_before_is_guessed() -> None:
    lookup = PromptLookup()
    assert lookup.guess([1, 2, 3, 4, 5, 6, 1, 2, 3], 2) == (4, 5)
    assert lookup.guess([1, 2, 3, 4, 5, 6, 1, 2, 3, 4], 4) == (5, 6, 1, 2)


def test_what_repeats_itself_is_guessed_to_go_on() -> None:
    assert PromptLookup().guess([7, 7, 7], 4) == (7, 7, 7, 7)
    assert PromptLookup().guess([0, 1, 2, 1, 2], 5) == (1, 2, 1, 2, 1)


def test_the_last_place_and_the_longest_end_are_preferred() -> None:
    assert PromptLookup().guess([1, 2, 7, 5, 1, 2, 8, 5, 1, 2], 1) == (8,)
    assert PromptLookup().guess([9, 1, 2, 7, 0, 1, 2, 8, 9, 1, 2], 1) == (7,)


@pytest.mark.parametrize("tokens", [[], [1], [1, 2], [1, 2, 3, 4], [5, 5]])
def test_nothing_is_guessed_from_what_was_never_seen(tokens: list[int]) -> None:
    assert PromptLookup().guess(tokens, 3) == ()


def test_guesses_that_come_to_nothing_are_made_ever_less_often() -> None:
    lookup, tokens = PromptLookup(), [1, 2, 1, 2]
    made = []
    for _ in range(40):
        guess = lookup.guess(tokens, 2)
        made.append(bool(guess))
        if guess:
            lookup.learn(0)
    assert [place for place, is_made in enumerate(made) if is_made] == [0, 2, 5, 10, 19, 36]
    lookup.learn(1)


@given(st.lists(st.integers(0, 3), max_size=60), st.data())
def test_a_guess_stands_in_the_text_behind_the_same_end(tokens: list[int], data: st.DataObject) -> None:
    lookup = PromptLookup()
    for length in sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=5))):
        lookup.guess(tokens[:length], 2)
    guess = lookup.guess(tokens, 3)
    if guess:
        ends = [tokens[-2:] == tokens[place - 2 : place] for place in range(2, len(tokens))]
        places = [place for place, is_same in zip(range(2, len(tokens)), ends, strict=True) if is_same]
        assert any((tokens[place:] * 3)[:3] == list(guess) for place in places)


def engine_with(num_guesses: int, **options: int) -> EngineCore:
    engine = core(**options)
    engine.scheduler.drafting = Drafting(num_guesses) if num_guesses else None
    return engine


def generate(engine: EngineCore, requests: list[Request]) -> dict[str, list[Output]]:
    """In batches, checking the pool's accounts after each step."""
    pool = engine.scheduler.pool
    runner = Runner(tiny_llama(CONFIG), KVCache.allocate(CONFIG, pool.num_blocks, BLOCK_SIZE, torch.float32, CPU))
    outputs: dict[str, list[Output]] = {asked.id: [] for asked in requests}
    for asked in requests:
        engine.add(asked)
    while engine.has_work:
        batch = engine.plan()
        assert batch.num_tokens <= engine.scheduler.max_num_batched_tokens
        for output in engine.commit(batch, runner.run(batch), 0.0):
            outputs[output.request_id].append(output)
        assert pool.num_free + pool.num_used + pool.num_cached == pool.num_blocks
    assert pool.num_used == 0
    return outputs


CPU = torch.device("cpu")


def tokens_of(outputs: dict[str, list[Output]]) -> dict[str, list[int]]:
    return {name: [token for output in each for token in output.token_ids] for name, each in outputs.items()}


def repetitive(random: Random) -> tuple[int, ...]:
    phrase = [random.randrange(CONFIG.vocab_size) for _ in range(random.randrange(1, 9))]
    return tuple((phrase * 9)[: random.randrange(2, 40)])


def asked_by(random: Random, index: int) -> Request:
    sampling: dict[str, Any] = {"max_tokens": random.randrange(1, 40)}
    if random.random() < 0.4:
        sampling |= {"temperature": random.choice([0.3, 1.0]), "seed": index, "top_p": random.choice([1.0, 0.8])}
    if random.random() < 0.3:
        sampling |= {"stop_token_ids": frozenset(random.sample(range(CONFIG.vocab_size), 3)), "min_tokens": 0}
    if random.random() < 0.2:
        sampling |= {"frequency_penalty": 0.7}
    return request(repetitive(random), name=f"r{index}", priority=random.randrange(2), **sampling)


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    num_blocks=st.sampled_from([22, 64]),
    num_guesses=st.integers(1, 8),
    budget=st.sampled_from([8, 32]),
)
def test_tokens_are_those_of_no_guessing(seed: int, num_blocks: int, num_guesses: int, budget: int) -> None:
    """Drawn and greedy ones, with stops, penalties, preemptions and prefix hits."""
    random = Random(seed)
    requests = [asked_by(random, index) for index in range(6)]
    options = {"num_blocks": num_blocks, "max_num_batched_tokens": budget}
    plain = tokens_of(generate(engine_with(0, **options), requests))
    assert tokens_of(generate(engine_with(num_guesses, **options), requests)) == plain


def test_a_text_that_repeats_itself_takes_fewer_steps_and_is_counted() -> None:
    engine = engine_with(4)
    asked = request((1, 2, 3, 4) * 4, max_tokens=60, logit_bias=((5, 100.0),))
    outputs = generate(engine, [asked])
    assert tokens_of(outputs) == tokens_of(generate(engine_with(0), [asked]))
    drafts = engine.stats.drafts
    assert drafts.num_accepted > 40
    assert 60 - drafts.num_accepted >= drafts.num_drafts
    assert drafts.num_accepted == sum(drafts.num_accepted_at) <= drafts.num_tokens
    assert drafts.num_accepted_at == sorted(drafts.num_accepted_at, reverse=True)


def test_guessed_tokens_have_their_logprobs() -> None:
    asked = request((1, 2, 3, 4) * 4, max_tokens=40, num_top_logprobs=2)
    with_guesses, without = (
        [told for output in generate(engine_with(guesses), [asked])[asked.id] for told in output.logprobs]
        for guesses in (4, 0)
    )
    assert [told.token_id for told in with_guesses] == [told.token_id for told in without]
    assert [told.logprob for told in with_guesses] == pytest.approx([told.logprob for told in without], abs=1e-4)


def test_nothing_is_guessed_beyond_the_last_token_that_is_wanted() -> None:
    engine = engine_with(8)
    engine.add(request((1, 2) * 8, max_tokens=3, name="r"))
    runner = Runner(tiny_llama(CONFIG), KVCache.allocate(CONFIG, 64, BLOCK_SIZE, torch.float32, CPU))
    widths = []
    while engine.has_work:
        batch = engine.plan()
        widths.append(batch.chunks[0].width)
        engine.commit(batch, runner.run(batch), 0.0)
    assert all(width <= 2 for width in widths[1:])
