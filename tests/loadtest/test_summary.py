import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.sample import Failure, Fault, Measured, Sample
from loadtest.settings import RunSettings
from loadtest.summary import Summary, percentile, spread, summarise

GOOD = Sample(
    sent_s=0.0,
    ended_s=2.0,
    failure=None,
    first_token_s=0.5,
    gaps_s=(0.1, 0.3),
    num_chunks=3,
    num_sent_words=10,
    num_input_tokens=12,
    num_output_tokens=4,
    num_cached_tokens=3,
    replica="r1",
)
BARE = replace(GOOD, num_input_tokens=None, num_output_tokens=None, num_cached_tokens=None, replica=None)
BUSY = replace(GOOD, failure=Failure(Fault.HTTP_STATUS, "slow down", 429), replica="r2")
LOST = replace(GOOD, failure=Failure(Fault.CUT, "no [DONE]"), replica=None)


def summary_of(*samples: Sample, **settings: object) -> Summary:
    measured = Measured("m", samples, 0.0, 4.0, num_unfinished=0, lag_s=0.0, is_interrupted=False)
    return summarise(measured, RunSettings(**settings))  # type: ignore[arg-type]


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=50))
def test_percentiles_agree_with_the_standard_library(values: list[float]) -> None:
    reference = statistics.quantiles(values, n=100, method="inclusive")
    ordered = sorted(values)
    for number in (1, 50, 90, 99):
        assert percentile(ordered, number / 100) == pytest.approx(reference[number - 1])


def test_one_value_is_every_percentile() -> None:
    one = spread([None, 3.0])
    assert one is not None
    assert (one.count, one.mean, one.p50, one.p99, one.max) == (1, 3.0, 3.0, 3.0, 3.0)


def test_without_values_there_is_no_distribution() -> None:
    assert spread([None]) is None


def test_rates_are_over_the_whole_run_and_of_successes_only() -> None:
    summary = summary_of(GOOD, GOOD, BUSY)
    assert (summary.num_requests, summary.num_succeeded, summary.num_failed) == (3, 2, 1)
    assert summary.requests_per_s == 0.5
    assert summary.output_tokens.per_s == 2.0
    assert summary.input_tokens.total == 24
    assert summary.ttft_s is not None
    assert summary.ttft_s.count == 2
    assert summary.itl_s is not None
    assert summary.itl_s.count == 4


def test_the_source_of_token_counts_is_told() -> None:
    assert summary_of(GOOD).output_tokens.source == "usage"
    counted = summary_of(BARE)
    assert (counted.output_tokens.total, counted.output_tokens.source) == (3, "counted chunks")
    assert (counted.input_tokens.total, counted.input_tokens.source) == (10, "words sent")
    mixed = summary_of(GOOD, BARE).output_tokens
    assert (mixed.total, mixed.source) == (7, "usage for 1 of 2, else counted chunks")


def test_the_cached_share_is_of_the_prompts_whose_cache_use_is_known() -> None:
    assert summary_of(GOOD, replace(GOOD, num_cached_tokens=9), BARE).cached_share == 0.5
    assert summary_of(BARE).cached_share is None


def test_failures_are_grouped_most_frequent_first_with_an_example() -> None:
    summary = summary_of(LOST, BUSY, BUSY)
    assert [(kind.label, kind.count, kind.example) for kind in summary.failures] == [
        ("HTTP 429", 2, "slow down"),
        ("cut stream", 1, "no [DONE]"),
    ]
    assert summary.error_share == 1.0


def test_replicas_are_counted_in_failures_too() -> None:
    assert summary_of(GOOD, BUSY, GOOD, BARE).requests_by_replica == {"r1": 2, "r2": 1}


def test_goodput_counts_a_failure_as_a_miss() -> None:
    slow = replace(GOOD, first_token_s=0.9)
    jerky = replace(GOOD, gaps_s=(0.1, 0.9))
    summary = summary_of(GOOD, slow, jerky, BUSY, slo_ttft_ms=500.0, slo_itl_ms=200.0)
    assert summary.goodput_per_s == 0.25
    assert summary.slo_share == 0.25
    assert summary_of(GOOD).goodput_per_s is None


def test_a_single_token_meets_any_gap_limit() -> None:
    assert summary_of(replace(GOOD, gaps_s=()), slo_itl_ms=1.0).slo_share == 1.0


def test_nothing_sent_is_summed_up_too() -> None:
    summary = summary_of(slo_ttft_ms=1.0)
    assert (summary.num_requests, summary.error_share, summary.slo_share, summary.e2e_s) == (0, 0.0, None, None)
