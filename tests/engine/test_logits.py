from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.logits import Row, adjust, logprobs_of
from engine.sequence import Sequence
from tests.engine.requests import request

VOCABULARY = 12


def sequence(prompt: list[int], output: list[int], **sampling: Any) -> Sequence:
    made = Sequence(request(tuple(prompt), **sampling), order=(0, 0))
    made.tokens += output
    return made


def adjusted(logits: torch.Tensor, *sequences: Sequence) -> torch.Tensor:
    changed = logits.clone()
    adjust(changed, [Row(each, each.num_output_tokens) for each in sequences])
    return changed


def penalised(row: list[float], each: Sequence) -> list[float]:
    """The formulas, one token at a time."""
    sampling, output = each.request.sampling, each.tokens[len(each.request.prompt) :]
    values = list(row)
    for token in set(each.tokens):
        value = values[token]
        value = value / sampling.repetition_penalty if value > 0 else value * sampling.repetition_penalty
        count = output.count(token)
        values[token] = value - sampling.frequency_penalty * count - sampling.presence_penalty * (count > 0)
    for token, bias in sampling.logit_bias:
        values[token] += bias
    return values


TOKENS = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=20)
OPTIONS = st.fixed_dictionaries(
    {
        "repetition_penalty": st.sampled_from([1.0, 0.5, 1.7]),
        "frequency_penalty": st.sampled_from([0.0, 0.25, -1.0]),
        "presence_penalty": st.sampled_from([0.0, 1.5, -0.5]),
        "logit_bias": st.dictionaries(st.integers(0, VOCABULARY - 1), st.sampled_from([-100.0, 2.5]), max_size=3).map(
            lambda bias: tuple(bias.items())
        ),
    }
)


@given(rows=st.lists(st.tuples(TOKENS, TOKENS, OPTIONS), min_size=1, max_size=5), seed=st.integers(0, 99))
def test_a_batch_is_adjusted_as_each_row_alone_by_the_formulas(rows: list[Any], seed: int) -> None:
    logits = torch.randn(len(rows), VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3
    sequences = [sequence(prompt, output, **options) for prompt, output, options in rows]
    expected = [penalised(row, each) for row, each in zip(logits.tolist(), sequences, strict=True)]
    torch.testing.assert_close(adjusted(logits, *sequences), torch.tensor(expected))


def test_what_asks_for_nothing_is_left_as_it_is() -> None:
    logits = torch.randn(2, VOCABULARY)
    assert torch.equal(adjusted(logits, sequence([1], [2]), sequence([1], [], temperature=1.0)), logits)


def test_stops_are_impossible_until_the_least_number_of_tokens_is_reached() -> None:
    options: dict[str, Any] = {"eos_token_ids": frozenset({2}), "stop_token_ids": frozenset({3}), "min_tokens": 2}
    early, late = adjusted(torch.zeros(2, 5), sequence([1], [], **options), sequence([1], [4], **options)).tolist()
    assert early == [0, 0, float("-inf"), float("-inf"), 0]
    assert late == [0] * 5


@pytest.mark.parametrize("num_top", [0, 1, 3, 99])
def test_logprobs_are_the_models_own(num_top: int) -> None:
    logits = torch.tensor([[0.5, 0.25, 0.125, 0.125], [0.1, 0.2, 0.3, 0.4]]).log() + 7
    first, second = logprobs_of(logits, [2, 3], [num_top, 2])
    assert first.token_id == 2
    assert first.logprob == pytest.approx(torch.tensor(0.125).log().item())
    assert len(first.top) == min(num_top, 4)
    assert [token for token, _ in second.top] == [3, 2]
    assert second.top[0][1] == pytest.approx(second.logprob)
