"""A run in numbers: who is counted, and what of."""

import pytest

from loadtest.simulator.job import Job
from loadtest.simulator.setup import WARM_UP_SHARE
from loadtest.simulator.simulate import Finished, simulate
from loadtest.simulator.summary import summarise
from tests.loadtest.simulator.small import setup


def test_it_counts_what_came_after_the_warm_up() -> None:
    finished = simulate(setup())
    found = summarise(finished, 1.0, 0)
    counted = finished.jobs[int(WARM_UP_SHARE * 120) :]
    assert found.num_requests == len(counted) == 108
    assert found.attainment == sum(job.meets_slo for job in counted) / 108
    hits = sum(job.num_cached_tokens for job in counted)
    assert found.hit_ratio == pytest.approx(hits / sum(job.ask.prompt.num_tokens for job in counted))
    assert found.ttft_ms.p50 <= found.ttft_ms.p90 <= found.ttft_ms.p99
    assert found.imbalance >= 1.0
    assert found.evictions == sum(replica.num_evicted for replica in finished.replicas)
    assert found.goodput_per_s > 0


def test_a_refused_request_is_offered_and_not_good() -> None:
    finished = simulate(setup())
    whole = summarise(finished, 1.0, 0)
    refused = [Job(job.ask, job.arrived_s, is_counted=True, is_refused=True) for job in finished.jobs[:108]]
    both = Finished([*finished.jobs, *refused], finished.replicas, finished.duration_s, is_aborted=False)
    found = summarise(both, 1.0, 0)
    assert found.num_refused == 108
    assert found.attainment == pytest.approx(whole.attainment / 2)
    assert found.ttft_ms == whole.ttft_ms


def test_nothing_at_all_is_a_run_too() -> None:
    found = summarise(Finished([], simulate(setup(num_requests=0)).replicas, 0.0, is_aborted=False), 1.0, 0)
    assert (found.num_requests, found.attainment, found.hit_ratio, found.imbalance) == (0, 0.0, 0.0, 1.0)
