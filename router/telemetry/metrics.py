"""Every metric of the router, declared here. Plain integers on the hot path, made Prometheus families on scrape.

Knows names, labels and buckets; knows nothing of who counts. Names: our own prefix, base units, `_total` for counters;
labels are bounded (model, replica, outcome, status, reason).
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

Labels = tuple[str, ...]
Samples = Callable[[], Iterable[tuple[Labels, float]]]

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Count:
    """What one row of label values has added up to. Who counts often keeps it at hand."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0


class Counter:
    """Adds up per label values: `add(("ok",))`."""

    __slots__ = ("_rows", "help", "labels", "name")

    def __init__(self, name: str, help: str, labels: Sequence[str]) -> None:
        self.name, self.help, self.labels = name, help, labels
        self._rows: dict[Labels, Count] = {}

    def row(self, labels: Labels = ()) -> Count:
        row = self._rows.get(labels)
        if row is None:
            row = self._rows[labels] = Count()
        return row

    def add(self, labels: Labels = (), amount: int = 1) -> None:
        self.row(labels).total += amount

    @property
    def counts(self) -> dict[Labels, int]:
        """The rows that are not zero."""
        return {labels: row.total for labels, row in self._rows.items() if row.total}

    def family(self) -> Metric:
        family = CounterMetricFamily(self.name, self.help, labels=self.labels)
        for labels, row in self._rows.items():
            family.add_metric(labels, row.total)
        return family


class Spread:
    """One row of a histogram: how many values fell into each bucket, and their sum."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(_SECONDS) + 1)
        self.sum_s = 0.0

    def observe(self, value_s: float) -> None:
        self.counts[bisect_left(_SECONDS, value_s)] += 1
        self.sum_s += value_s


class Histogram:
    """Counts seconds into buckets per label values."""

    __slots__ = ("_rows", "help", "labels", "name")

    def __init__(self, name: str, help: str, labels: Sequence[str]) -> None:
        self.name, self.help, self.labels = name, help, labels
        self._rows: dict[Labels, Spread] = {}

    def row(self, labels: Labels = ()) -> Spread:
        row = self._rows.get(labels)
        if row is None:
            row = self._rows[labels] = Spread()
        return row

    def observe(self, value_s: float, labels: Labels = ()) -> None:
        self.row(labels).observe(value_s)

    @property
    def rows(self) -> dict[Labels, Spread]:
        """Those that have counted something."""
        return {labels: row for labels, row in self._rows.items() if any(row.counts)}

    def family(self) -> Metric:
        family = HistogramMetricFamily(self.name, self.help, labels=self.labels)
        for labels, row in self.rows.items():
            family.add_metric(labels, list(_cumulative(row.counts)), row.sum_s)
        return family


def _cumulative(counts: Sequence[int]) -> Iterator[tuple[str, float]]:
    running = 0
    for bound, count in zip((*_SECONDS, float("inf")), counts, strict=True):
        running += count
        yield ("+Inf" if bound == float("inf") else str(bound)), running


class Metrics:
    """The router's metrics. Gauges are read on scrape from callables that the composition root adds."""

    def __init__(self) -> None:
        c, h = Counter, Histogram
        self.requests = c("pointsman_requests", "Requests ended, by how.", ("model", "outcome", "status"))
        self.attempts = c("pointsman_attempts", "Attempts on replicas, by how they ended.", ("replica", "outcome"))
        self.retries = c("pointsman_retries", "Attempts after the first, by the error before.", ("reason",))
        halves = ("prefill", "decode", "outcome")
        self.handovers = c("pointsman_handovers", "Prompts computed by one for another, by how it went.", halves)
        self.merged_calls = c("pointsman_merged_calls", "Calls to replicas for several requests.", ("replica",))
        self.merged_requests = c("pointsman_merged_requests", "Requests that went in such calls.", ("replica",))
        self.tokens = c("pointsman_tokens", "Tokens as replicas reported them.", ("model", "kind"))
        self.predicted = c("pointsman_predicted_cached_tokens", "Prompt tokens expected in the cache.", ("model",))
        self.first_byte = h("pointsman_time_to_first_token_seconds", "Arrival to first content byte.", ("model",))
        self.duration = h("pointsman_request_duration_seconds", "Arrival to the last byte.", ("model",))
        self.placed = h("pointsman_queue_wait_seconds", "Wait for a place on a replica.", ("model",))
        self._gauges: list[tuple[str, str, Sequence[str], Samples]] = []

    def add_gauge(self, name: str, help: str, labels: Sequence[str], samples: Samples) -> None:
        self._gauges.append((name, help, labels, samples))

    def collect(self) -> Iterator[Metric]:
        counted = (self.requests, self.attempts, self.retries, self.tokens, self.predicted)
        special = (self.handovers, self.merged_calls, self.merged_requests)
        for metric in (*counted, *special, self.first_byte, self.duration, self.placed):
            yield metric.family()
        for name, help, labels, samples in self._gauges:
            family = GaugeMetricFamily(name, help, labels=labels)
            for values, value in samples():
                family.add_metric(values, value)
            yield family

    def render(self) -> bytes:
        """The `/metrics` page in Prometheus' text format."""
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)
