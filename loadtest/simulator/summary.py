"""What came of a run, in numbers. Knows jobs and replicas after a run; prints nothing."""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

import msgspec

from loadtest.simulator.job import Job
from loadtest.simulator.simulate import Finished
from loadtest.summary import percentile


class Percentiles(msgspec.Struct, frozen=True):
    """Of one latency, in milliseconds."""

    mean: float
    p50: float
    p90: float
    p99: float


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Over the counted requests, those of the warm-up left out. `light_ttft_ms` is of all tenants but the heaviest.

    `attainment`: share that met the objective, refused ones included in the whole. `goodput_per_s`: those that did, a
    second. `hit_ratio`: prompt tokens that were cached / prompt tokens. `imbalance`: the busiest replica's time in
    steps / the mean. `evictions`: KV blocks. `handovers`: prompts whose KV, `moved_tokens` of it in all, went from the
    replica that computed them to another. An aborted run's numbers are those up to its abort.
    """

    load: float
    seed: int
    num_requests: int
    num_refused: int
    attainment: float
    goodput_per_s: float
    hit_ratio: float
    ttft_ms: Percentiles
    tpot_ms: Percentiles
    light_ttft_ms: Percentiles
    imbalance: float
    evictions: int
    preemptions: int
    adapter_loads: int
    handovers: int = 0
    moved_tokens: int = 0
    duration_s: float
    is_aborted: bool


def summarise(finished: Finished, load: float, seed: int) -> Summary:
    counted = [job for job in finished.jobs if job.is_counted]
    served = [job for job in counted if job.first_token_s is not None]
    num_good = sum(job.meets_slo for job in counted)
    start_s = counted[0].arrived_s if counted else 0.0
    schedulers = [replica.core.scheduler for replica in finished.replicas]
    return Summary(
        load=load,
        seed=seed,
        num_requests=len(counted),
        num_refused=sum(job.is_refused for job in counted),
        attainment=num_good / max(1, len(counted)),
        goodput_per_s=num_good / max(1e-9, _last_arrival_s(counted) - start_s),
        hit_ratio=_ratio(
            sum(job.num_cached_tokens for job in served), sum(job.ask.prompt.num_tokens for job in served)
        ),
        ttft_ms=_percentiles([job.ttft_s for job in served if job.ttft_s is not None]),
        tpot_ms=_percentiles([job.tpot_s for job in served if job.tpot_s is not None]),
        light_ttft_ms=_percentiles([job.ttft_s for job in _of_light_tenants(served) if job.ttft_s is not None]),
        imbalance=_imbalance([replica.busy_s for replica in finished.replicas]),
        evictions=sum(replica.num_evicted for replica in finished.replicas),
        preemptions=sum(scheduler.num_preemptions for scheduler in schedulers),
        adapter_loads=sum(replica.num_adapter_loads for replica in finished.replicas),
        handovers=0 if finished.links is None else finished.links.num_transfers,
        moved_tokens=0 if finished.links is None else finished.links.num_moved_tokens,
        duration_s=finished.duration_s,
        is_aborted=finished.is_aborted,
    )


def _percentiles(values_s: Sequence[float]) -> Percentiles:
    if not values_s:
        return Percentiles(0.0, 0.0, 0.0, 0.0)
    ordered = sorted(values_s)
    shares = (percentile(ordered, share) for share in (0.5, 0.9, 0.99))
    return Percentiles(*(round(value * 1e3, 3) for value in (fmean(ordered), *shares)))


def _of_light_tenants(jobs: Sequence[Job]) -> Sequence[Job]:
    tenants = Counter(job.ask.tenant for job in jobs)
    heaviest = {name for name, _ in tenants.most_common(1)}
    return [job for job in jobs if job.ask.tenant not in heaviest]


def _imbalance(busy_s: Sequence[float]) -> float:
    return _ratio(max(busy_s), fmean(busy_s)) or 1.0


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _last_arrival_s(jobs: Sequence[Job]) -> float:
    return jobs[-1].arrived_s if jobs else 0.0
