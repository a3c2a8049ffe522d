"""The engine's numbers as Prometheus text, under vLLM's names where vLLM has one.

Knows names, labels and how to read the core. Must not know HTTP. Nothing is counted here: a scrape collects.
"""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.core import EngineCore
from engine.sequence import FinishReason
from engine.stats import Histogram


class EngineMetrics(Collector):
    """Label `engine` is vLLM's number of a data-parallel rank; there is one."""

    def __init__(self, core: EngineCore, model_id: str) -> None:
        self._core = core
        self._labels = {"model_name": model_id, "engine": "0"}
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def render(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        scheduler, stats = self._core.scheduler, self._core.stats
        pool = scheduler.pool
        yield self._gauge("vllm:num_requests_running", "Requests in the batch.", scheduler.num_running)
        yield self._gauge("vllm:num_requests_waiting", "Requests waiting for a place.", scheduler.num_waiting)
        yield self._gauge("vllm:kv_cache_usage_perc", "KV blocks in use, 0 to 1.", pool.num_used / pool.num_blocks)
        yield self._cache_config(pool.block_size, pool.num_blocks)
        yield self._counter("vllm:prefix_cache_queries", "Prompt tokens looked up.", scheduler.num_queried_tokens)
        yield self._counter("vllm:prefix_cache_hits", "Prompt tokens found cached.", scheduler.num_hit_tokens)
        yield self._counter("vllm:num_preemptions", "Sequences that gave up blocks.", scheduler.num_preemptions)
        yield self._counter("vllm:prompt_tokens", "Prompt tokens processed.", stats.num_prompt_tokens)
        yield self._counter("vllm:generation_tokens", "Tokens generated.", stats.num_output_tokens)
        yield self._finished()
        yield self._histogram("vllm:time_to_first_token_seconds", "From arrival to first token.", stats.first_token_s)
        yield self._histogram("vllm:time_per_output_token_seconds", "From each token to the next.", stats.next_token_s)
        yield self._gauge(
            "pointsman_engine_queued_prefill_tokens",
            "Uncached prompt tokens not computed yet, waiting and running.",
            scheduler.num_queued_prefill_tokens,
        )

    def _gauge(self, name: str, about: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, about, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _counter(self, name: str, about: str, value: float) -> Metric:
        family = CounterMetricFamily(name, about, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _cache_config(self, block_size: int, num_blocks: int) -> Metric:
        labels = {**self._labels, "block_size": str(block_size), "num_gpu_blocks": str(num_blocks)}
        family = GaugeMetricFamily("vllm:cache_config_info", "How the KV cache is laid out.", labels=list(labels))
        family.add_metric(list(labels.values()), 1)
        return family

    def _finished(self) -> Metric:
        family = CounterMetricFamily(
            "vllm:request_success", "Requests ended, by reason.", labels=[*self._labels, "finished_reason"]
        )
        for reason in FinishReason:
            family.add_metric([*self._labels.values(), reason.value], self._core.stats.finished[reason])
        return family

    def _histogram(self, name: str, about: str, histogram: Histogram) -> Metric:
        family = HistogramMetricFamily(name, about, labels=list(self._labels))
        cumulated, buckets = 0, []
        for bound, number in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
            cumulated += number
            buckets.append(("+Inf" if bound == float("inf") else str(bound), float(cumulated)))
        family.add_metric(list(self._labels.values()), buckets, histogram.total)
        return family
