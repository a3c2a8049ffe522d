from collections import Counter
from typing import Any

import pytest
import torch

from engine import sampler
from engine.batch import Chunk
from engine.drawing import _uniform
from engine.logits import Row
from engine.sampling import Sampled
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


def test_a_nucleus_beyond_the_first_candidates_is_found() -> None:
    """1,000 tokens that are all alike: their nucleus of 0.9 has 900."""
    logits = torch.zeros(400, 1000)
    rows = [sequence(position, temperature=1.0, top_p=0.9) for position in range(400)]
    assert 300 < len(set(sample(logits, rows))) <= 900


@pytest.mark.parametrize("options", [{}, {"top_k": 50}, {"top_p": 0.95}, {"top_k": 400, "top_p": 0.5}, {"min_p": 0.02}])
def test_cutting_in_a_batch_is_cutting_alone(options: dict[str, Any]) -> None:
    """Against the plain definition: sort, cut, and the inverse of what is cumulated in vocabulary order."""
    logits = torch.randn(40, 2000, generator=torch.Generator().manual_seed(3)) * 2
    rows = [sequence(index, seed=9, temperature=0.8, **options) for index in range(40)]
    mixed = [*rows, sequence(0, temperature=1.0), sequence(0, temperature=3.0, top_k=1000, top_p=0.99), sequence()]
    chosen = sample(torch.cat([logits, torch.randn(3, 2000)]), mixed)[:40]
    assert chosen == [plainly_drawn(row, each) for row, each in zip(logits, rows, strict=True)]


def plainly_drawn(row: torch.Tensor, sequence: Sequence) -> int:
    sampling = sequence.request.sampling
    row = row / sampling.temperature
    if sampling.min_p:
        row = row.masked_fill(row < row.max() + torch.tensor(sampling.min_p).log(), float("-inf"))
    if sampling.top_k is not None:
        row = row.masked_fill(row < row.topk(sampling.top_k).values[-1], float("-inf"))
    ordered, tokens = row.double().softmax(-1).sort(descending=True)
    kept = torch.zeros_like(ordered)
    inside = ordered.cumsum(-1) - ordered < sampling.top_p
    kept[tokens[inside]] = ordered[inside]
    uniform = _uniform(Row(sequence, sequence.num_output_tokens))
    return int((kept.cumsum(-1) <= uniform * kept.sum()).sum())


def telling(**sampling: Any) -> Sequence:
    return sequence(num_top_logprobs=2, **sampling)


def test_logprobs_are_told_beside_the_token_and_are_those_before_all_changes() -> None:
    logits = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).log().repeat(3, 1)
    rows = [telling(logit_bias=((0, 100.0),)), sequence(), telling(temperature=1.0, top_k=1)]
    biased, plain, drawn = sampler.sample(logits, [last(row) for row in rows])
    assert isinstance(biased, Sampled)
    assert isinstance(drawn, Sampled)
    assert plain == 3
    assert (biased.token_ids, drawn.token_ids) == ((0,), (3,))
    (told,) = biased.logprobs
    assert told.token_id == 0
    assert told.logprob == pytest.approx(torch.tensor(0.1).log().item())
    assert [token for token, _ in told.top] == [3, 2]


def test_each_token_of_a_prompt_is_told_by_the_row_before_it() -> None:
    asked = Sequence(request((5, 1, 2, 0), num_top_logprobs=1, wants_prompt_logprobs=True), order=(0, 0))
    logits = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    first, other = sampler.sample(logits[:3].clone(), [Chunk(asked, 0, 2), last(sequence())])
    assert isinstance(first, Sampled)
    assert (first.token_ids, [told.token_id for told in first.prompt_logprobs]) == ((), [1, 2])
    assert first.prompt_logprobs[0].logprob == pytest.approx(logits[0].log_softmax(-1)[1].item())
    assert other == logits[2].argmax()
    (rest,) = sampler.sample(logits[3:].clone(), [Chunk(asked, 2, 2)])
    assert isinstance(rest, Sampled)
    assert rest.token_ids == (int(logits[4].argmax()),)
    assert [told.token_id for told in (*rest.prompt_logprobs, *rest.logprobs)] == [0, rest.token_ids[0]]


def test_penalties_change_what_is_likeliest() -> None:
    logits = torch.tensor([[1.0, 0.9, 0.0, 0.0]])
    assert sample(logits.clone(), [sequence(3)]) == [0]
    assert sample(logits.clone(), [sequence(3, presence_penalty=0.2)]) == [1]
