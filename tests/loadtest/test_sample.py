from dataclasses import replace

import pytest

from loadtest.sample import Failure, Fault, Sample

SAMPLE = Sample(
    sent_s=10.0,
    ended_s=13.0,
    failure=None,
    first_token_s=11.0,
    gaps_s=(0.5, 1.5),
    num_chunks=3,
    num_sent_words=7,
    num_input_tokens=8,
    num_output_tokens=5,
    num_cached_tokens=None,
    replica=None,
)


def test_the_times_are_as_defined() -> None:
    assert SAMPLE.e2e_s == 3.0
    assert SAMPLE.ttft_s == 1.0
    assert SAMPLE.mean_gap_s == 1.0
    assert SAMPLE.tpot_s == 2.0 / 4


def test_without_usage_the_chunks_stand_for_tokens() -> None:
    assert replace(SAMPLE, num_output_tokens=None).tpot_s == 2.0 / 2


@pytest.mark.parametrize("num_tokens", [0, 1])
def test_fewer_than_two_tokens_have_no_time_per_token(num_tokens: int) -> None:
    assert replace(SAMPLE, num_output_tokens=num_tokens).tpot_s is None


def test_without_a_first_token_there_is_no_ttft() -> None:
    sample = replace(SAMPLE, first_token_s=None, gaps_s=())
    assert (sample.ttft_s, sample.tpot_s, sample.mean_gap_s) == (None, None, None)


def test_a_failure_is_grouped_by_kind_and_status() -> None:
    assert Failure(Fault.HTTP_STATUS, "slow down", 429).label == "HTTP 429"
    assert Failure(Fault.CUT, "no end").label == "cut stream"
