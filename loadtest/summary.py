"""What a run's samples say together: counts, rates, percentiles. Pure; knows nothing of how they are shown.

Latencies and tokens are those of the requests that succeeded; goodput and shares are of all that were sent.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from loadtest.sample import Failure, Measured, Sample
from loadtest.settings import RunSettings

REPORTED = "usage"
COUNTED = "counted chunks"
SENT = "words sent"


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution in seconds."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of the requests that succeeded; `source` says how they were counted."""

    total: int
    per_s: float
    source: str


@dataclass(frozen=True, slots=True)
class FailureCount:
    """One kind of failure, how often, and what the first of them said."""

    label: str
    count: int
    example: str


@dataclass(frozen=True, slots=True)
class Summary:
    """Everything that the table and the JSON tell. Durations in seconds; None where nothing was measured."""

    model: str
    duration_s: float
    num_requests: int
    num_succeeded: int
    num_failed: int
    num_unfinished: int
    failures: tuple[FailureCount, ...]
    requests_per_s: float
    input_tokens: Tokens
    output_tokens: Tokens
    ttft_s: Spread | None
    itl_s: Spread | None
    tpot_s: Spread | None
    e2e_s: Spread | None
    cached_share: float | None
    goodput_per_s: float | None
    slo_share: float | None
    requests_by_replica: dict[str, int]
    lag_s: float
    is_interrupted: bool

    @property
    def error_share(self) -> float:
        """Failed requests of all that ended."""
        return self.num_failed / self.num_requests if self.num_requests else 0.0


def summarise(measured: Measured, settings: RunSettings) -> Summary:
    """Sum a run up."""
    samples = measured.samples
    good = [sample for sample in samples if sample.failure is None]
    duration_s = max(measured.ended_s - measured.started_s, 1e-9)
    num_within = _num_within_slo(good, settings)
    return Summary(
        model=measured.model,
        duration_s=duration_s,
        num_requests=len(samples),
        num_succeeded=len(good),
        num_failed=len(samples) - len(good),
        num_unfinished=measured.num_unfinished,
        failures=_count_failures(sample.failure for sample in samples if sample.failure),
        requests_per_s=len(good) / duration_s,
        input_tokens=_tokens([(s.num_input_tokens, s.num_sent_words) for s in good], SENT, duration_s),
        output_tokens=_tokens([(s.num_output_tokens, s.num_chunks) for s in good], COUNTED, duration_s),
        ttft_s=spread(sample.ttft_s for sample in good),
        itl_s=spread(gap for sample in good for gap in sample.gaps_s),
        tpot_s=spread(sample.tpot_s for sample in good),
        e2e_s=spread(sample.e2e_s for sample in good),
        cached_share=_cached_share(good),
        goodput_per_s=None if num_within is None else num_within / duration_s,
        slo_share=None if num_within is None or not samples else num_within / len(samples),
        requests_by_replica=dict(sorted(Counter(s.replica for s in samples if s.replica).items())),
        lag_s=measured.lag_s,
        is_interrupted=measured.is_interrupted,
    )


def spread(values: Iterable[float | None]) -> Spread | None:
    """The distribution of the values that are there; None without any."""
    ordered = sorted(value for value in values if value is not None)
    if not ordered:
        return None
    mean = math.fsum(ordered) / len(ordered)
    p50, p90, p99 = (percentile(ordered, share) for share in (0.5, 0.9, 0.99))
    return Spread(len(ordered), mean, p50, p90, p99, ordered[-1])


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` of the sorted values lie, interpolated linearly between neighbours."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _count_failures(failures: Iterable[Failure]) -> tuple[FailureCount, ...]:
    counts: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for failure in failures:
        counts[failure.label] += 1
        examples.setdefault(failure.label, failure.message)
    return tuple(FailureCount(label, number, examples[label]) for label, number in counts.most_common())


def _tokens(pairs: list[tuple[int | None, int]], fallback: str, duration_s: float) -> Tokens:
    """Sum (reported, own count) pairs: the server's number where there is one."""
    num_reported = sum(reported is not None for reported, _ in pairs)
    total = sum(own if reported is None else reported for reported, own in pairs)
    if num_reported == len(pairs):
        source = REPORTED
    elif num_reported == 0:
        source = fallback
    else:
        source = f"{REPORTED} for {num_reported} of {len(pairs)}, else {fallback}"
    return Tokens(total, total / duration_s, source)


def _cached_share(good: list[Sample]) -> float | None:
    """Cached prompt tokens of all prompt tokens, where the server reports both."""
    pairs = [(s.num_cached_tokens, s.num_input_tokens) for s in good if s.num_cached_tokens is not None]
    num_input = sum(total or 0 for _, total in pairs)
    return sum(cached for cached, _ in pairs if cached) / num_input if num_input else None


def _num_within_slo(good: list[Sample], settings: RunSettings) -> int | None:
    if settings.slo_ttft_ms is None and settings.slo_itl_ms is None:
        return None
    return sum(
        _is_within(sample.ttft_s, settings.slo_ttft_ms) and _is_within(sample.mean_gap_s, settings.slo_itl_ms)
        for sample in good
    )


def _is_within(value_s: float | None, limit_ms: float | None) -> bool:
    """A request without the measured event (no second token, say) cannot miss its limit."""
    return limit_ms is None or value_s is None or value_s * 1000 <= limit_ms
