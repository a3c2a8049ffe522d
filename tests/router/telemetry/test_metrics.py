import random
from bisect import bisect_left
from collections.abc import Mapping

import pytest
from prometheus_client.parser import text_string_to_metric_families

from router.telemetry.metrics import Metrics

Rows = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


def scraped(metrics: Metrics) -> Rows:
    """The page as Prometheus reads it: (sample name, labels) -> value."""
    families = text_string_to_metric_families(metrics.render().decode())
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return scraped(metrics)[name, frozenset(labels.items())]


def test_a_fresh_page_names_every_metric_with_help_and_type() -> None:
    families = list(text_string_to_metric_families(Metrics().render().decode()))
    assert {family.name: family.type for family in families} == {
        "pointsman_requests": "counter",
        "pointsman_attempts": "counter",
        "pointsman_retries": "counter",
        "pointsman_handovers": "counter",
        "pointsman_merged_calls": "counter",
        "pointsman_merged_requests": "counter",
        "pointsman_tokens": "counter",
        "pointsman_predicted_cached_tokens": "counter",
        "pointsman_time_to_first_token_seconds": "histogram",
        "pointsman_request_duration_seconds": "histogram",
        "pointsman_queue_wait_seconds": "histogram",
    }
    assert all(family.documentation.endswith(".") for family in families)


def test_a_counter_adds_up_per_labels() -> None:
    metrics = Metrics()
    metrics.requests.add(("m", "ok", "200"))
    metrics.requests.add(("m", "ok", "200"), 2)
    metrics.requests.add(("m", "rejected", "429"))
    assert value(metrics, "pointsman_requests_total", model="m", outcome="ok", status="200") == 3
    assert value(metrics, "pointsman_requests_total", model="m", outcome="rejected", status="429") == 1


def test_odd_label_values_survive_the_page() -> None:
    metrics = Metrics()
    name = 'a "model"\\ of\nmany {words}'
    metrics.predicted.add((name,), 5)
    assert value(metrics, "pointsman_predicted_cached_tokens_total", model=name) == 5


def test_a_histogram_counts_each_value_in_every_bucket_that_holds_it() -> None:
    metrics = Metrics()
    for seconds in (0.0005, 0.001, 0.3, 1.0, 1000.0):
        metrics.duration.observe(seconds, ("m",))
    name = "pointsman_request_duration_seconds"
    for bound, count in (("0.001", 2), ("0.25", 2), ("0.5", 3), ("1.0", 4), ("300.0", 4), ("+Inf", 5)):
        assert value(metrics, f"{name}_bucket", model="m", le=bound) == count
    assert value(metrics, f"{name}_count", model="m") == 5
    assert value(metrics, f"{name}_sum", model="m") == pytest.approx(1001.3015)


@pytest.mark.parametrize("seed", range(3))
def test_buckets_agree_with_a_plain_count(seed: int) -> None:
    rng, metrics = random.Random(seed), Metrics()
    values = [10 ** rng.uniform(-4, 3) for _ in range(300)]
    for seconds in values:
        metrics.first_byte.observe(seconds, ("m",))
    rows = scraped(metrics)
    buckets = {
        dict(labels)["le"]: count
        for (name, labels), count in rows.items()
        if name == "pointsman_time_to_first_token_seconds_bucket"
    }
    ordered = sorted(values)
    assert buckets.pop("+Inf") == len(values)
    assert buckets == {bound: bisect_left(ordered, float(bound)) for bound in buckets}
    assert len(buckets) > 10


def test_a_gauge_is_read_on_scrape() -> None:
    metrics, count = Metrics(), 1.0
    metrics.add_gauge("pointsman_things", "Things.", ("kind",), lambda: [(("a",), count), (("b",), 2.0)])
    assert value(metrics, "pointsman_things", kind="a") == 1.0
    count = 5.0
    assert value(metrics, "pointsman_things", kind="a") == 5.0
    assert value(metrics, "pointsman_things", kind="b") == 2.0


def test_a_gauge_without_labels_is_one_line() -> None:
    metrics = Metrics()
    metrics.add_gauge("pointsman_lag_seconds", "Lag.", (), lambda: [((), 0.5)])
    assert b"\npointsman_lag_seconds 0.5\n" in metrics.render()


def test_two_sets_of_metrics_share_nothing() -> None:
    first, second = Metrics(), Metrics()
    first.retries.add(("replica_failed",))
    assert scraped(first) != scraped(second)
