"""The reports of several workers as one: what the admin port shows. Pure; knows shapes of metrics and pages.

Counters of workers that are gone still count: a counter never goes back when a worker is replaced.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric

from router.replicas.speeds import Source
from router.workers.frames import Family, Report

COUNTED = ("counter", "histogram")
# What each worker holds of its own; of any other gauge, which all see alike, the largest stands.
SUMMED = frozenset(
    {
        "pointsman_replica_in_flight",
        "pointsman_index_bytes",
        "pointsman_lessons_refused",
        "pointsman_prefix_reuse_tokens",
        "pointsman_queue_waiting",
        "pointsman_unready_waiting",
        "pointsman_open_requests",
    }
)

Key = tuple[str, tuple[tuple[str, str], ...]]


@dataclass(eq=False, slots=True)
class Totals:
    """Families by name, each with its samples by name and labels."""

    kinds: dict[str, tuple[str, str]] = field(default_factory=dict)
    samples: dict[str, dict[Key, float]] = field(default_factory=dict)

    def add(self, families: Iterable[Family], *, only_counted: bool = False) -> None:
        for family in families:
            if family.kind in COUNTED or not only_counted:
                self._add_family(family)

    def _add_family(self, family: Family) -> None:
        self.kinds[family.name] = (family.kind, family.help)
        samples = self.samples.setdefault(family.name, {})
        is_summed = family.kind in COUNTED or family.name in SUMMED
        for name, labels, value in family.samples:
            key = (name, tuple(labels.items()))
            before = samples.get(key)
            samples[key] = value if before is None else before + value if is_summed else max(before, value)

    def families(self) -> list[Family]:
        return [
            Family(name, kind, help, [(key[0], dict(key[1]), value) for key, value in self.samples[name].items()])
            for name, (kind, help) in self.kinds.items()
        ]

    def collect(self) -> Iterable[Metric]:
        """For prometheus_client."""
        for name, (kind, help) in self.kinds.items():
            metric = Metric(name, help, kind)
            for (sample, labels), value in self.samples[name].items():
                metric.add_sample(sample, dict(labels), value)
            yield metric


def render(totals: Totals) -> bytes:
    """The `/metrics` page in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(totals)
    return generate_latest(registry)


def merge_replicas(reports: Sequence[Report]) -> list[Mapping[str, object]]:
    """One row a replica: what each worker has there is added up, of what each has found out the worst stands."""
    rows: dict[object, dict[str, object]] = {}
    for report in reports:
        for row in report.replicas:
            seen = rows.get(row["id"])
            rows[row["id"]] = dict(row) if seen is None else _merge_row(seen, row)
    return list(rows.values())


_BREAKERS = ("closed", "half_open", "open")
_KNOWLEDGE = ("EXACT", "APPROXIMATE", "BLIND")
_SOURCES = tuple(Source)
_ADAPTERS = ("waiting", "leaving", "failed", "loading", "loaded")


def _merge_row(one: dict[str, object], other: Mapping[str, object]) -> dict[str, object]:
    merged = one | {"in_flight": _number(one["in_flight"]) + _number(other["in_flight"])}
    for name in ("cached_blocks", "expected_wait_s", "prefill_tokens_per_s"):
        merged[name] = max(_number(one[name]), _number(other[name]))
    merged["breaker"] = max(str(one["breaker"]), str(other["breaker"]), key=_BREAKERS.index)
    known = (str(one["knowledge"]), str(other["knowledge"]))
    merged["knowledge"] = max(known, key=lambda text: _KNOWLEDGE.index(text.partition(":")[0]))
    merged["speed_source"] = max(str(one["speed_source"]), str(other["speed_source"]), key=_SOURCES.index)
    merged["speed_samples"] = _number(one["speed_samples"]) + _number(other["speed_samples"])
    merged["adapters"] = _merge_adapters(_table(one["adapters"]), _table(other["adapters"]))
    return merged


def _merge_adapters(one: Mapping[str, Any], other: Mapping[str, Any]) -> Mapping[str, Any]:
    """Only one of them looks after an adapter: what it knows says most."""
    names = sorted(one.keys() | other.keys())
    seen = {name: [each[name] for each in (one, other) if name in each] for name in names}
    return {name: max(found, key=lambda each: _ADAPTERS.index(each["state"])) for name, found in seen.items()}


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: object) -> float:
    return value if isinstance(value, int | float) else 0.0
