from collections import Counter
from typing import Any

import pytest
import torch

from engine import sampler
from engine.sampling import Sampled, TokenLogprobs
from engine.scheduler import Chunk
from engine.sequence import Sequence
from tests.engine.requests import request


def sequence(num_output_tokens: int = 0, **sampling: Any) -> Sequence:
    sequence = Sequence(request(**sampling), order=(0, 0))
    sequence.tokens += [0] * num_output_tokens
    return sequence


def last(sequence: Sequence) -> Chunk:
    """The chunk that samples behind the sequence's last token."""
    return Chunk(sequence, len(sequence.tokens) - 1, 1)


def sample(logits: torch.Tensor, sequences: list[Sequence]) -> list[int]:
    chosen = sampler.sample(logits, [last(sequence) for sequence in sequences])
    return [token for token in chosen if isinstance(token, int)]


def draws(probabilities: list[float], count: int = 2000, **sampling: Any) -> Counter[int]:
    """How often each token is drawn at `count` positions of one seed."""
    logits = torch.tensor(probabilities).log()
    rows = [sequence(position, temperature=1.0, **sampling) for position in range(count)]
    return Counter(sample(logits.repeat(count, 1), rows))


def test_temperature_zero_takes_the_most_probable() -> None:
    assert sample(torch.tensor([[0.1, 3.0, -1.0], [5.0, 3.0, 4.0]]), [sequence(), sequence()]) == [1, 0]


def test_draws_follow_the_probabilities() -> None:
    counts = draws([0.5, 0.0, 0.3, 0.2])
    assert counts[1] == 0
    assert [round(counts[token] / 2000, 1) for token in (0, 2, 3)] == [0.5, 0.3, 0.2]


def test_a_low_temperature_sharpens_and_a_high_one_flattens() -> None:
    logits = torch.tensor([0.6, 0.4]).log()
    share = {}
    for temperature in (0.2, 1.0, 5.0):
        rows = [sequence(position, temperature=temperature) for position in range(2000)]
        share[temperature] = Counter(sample(logits.repeat(2000, 1), rows))[0]
    assert share[0.2] > share[1.0] > share[5.0] > 1000


def test_a_draw_depends_on_seed_and_position_and_not_on_the_batch() -> None:
    logits = torch.randn(7, 100, generator=torch.Generator().manual_seed(0))
    rows = [sequence(index, seed=index, temperature=1.5) for index in range(7)]
    together = sample(logits.clone(), rows)
    alone = [sample(logits[index : index + 1].clone(), [rows[index]])[0] for index in range(7)]
    backwards = sample(logits.flip(0).clone(), rows[::-1])[::-1]
    assert together == alone == backwards


def test_another_seed_or_position_draws_something_else() -> None:
    logits = torch.zeros(1, 1000)
    drawn = {
        sample(logits.clone(), [sequence(position, seed=seed, temperature=1.0)])[0]
        for seed in range(5)
        for position in range(5)
    }
    assert len(drawn) > 20


def test_greedy_and_drawn_rows_mix() -> None:
    logits = torch.tensor([[0.0, 9.0, 0.0]]).repeat(3, 1)
    rows = [sequence(), sequence(temperature=1.0, top_k=1), sequence()]
    assert sample(logits, rows) == [1, 1, 1]


@pytest.mark.parametrize(
    ("sampling", "allowed"),
    [
        ({"top_k": 1}, {1}),
        ({"top_k": 2}, {1, 2}),
        ({"top_k": 99}, {0, 1, 2, 3}),
        ({"top_p": 0.3}, {1}),
        ({"top_p": 0.5}, {1, 2}),
        ({"top_p": 0.8}, {1, 2, 3}),
        ({"min_p": 0.7}, {1, 2}),
        ({"min_p": 1.0}, {1}),
        ({"top_k": 3, "top_p": 0.7}, {1, 2}),
    ],
)
def test_only_what_the_cuts_leave_is_drawn(sampling: dict[str, Any], allowed: set[int]) -> None:
    assert set(draws([0.1, 0.4, 0.3, 0.2], **sampling)) == allowed


def test_stops_are_impossible_until_the_least_number_of_tokens_is_reached() -> None:
    logits = torch.tensor([[0.0, 5.0, 9.0, 7.0]])
    stops = {"eos_token_ids": frozenset({2}), "stop_token_ids": frozenset({3}), "min_tokens": 2}
    assert sample(logits.clone(), [sequence(0, **stops)]) == [1]
    assert sample(logits.clone(), [sequence(1, **stops)]) == [2]
