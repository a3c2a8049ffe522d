"""The engine's numbers as Prometheus text, under vLLM's names where vLLM has one.

Knows names, labels and how to read the core. Must not know HTTP. Nothing is counted here: a scrape collects.
"""

import time
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.core import EngineCore
from engine.sequence import FinishReason, Sequence
from engine.stats import DraftStats, Histogram, RequestStats

_OF_REQUESTS: tuple[tuple[str, str, Callable[[RequestStats], Histogram]], ...] = (
    ("vllm:e2e_request_latency_seconds", "From arrival to last token.", lambda stats: stats.total_s),
    ("vllm:request_queue_time_seconds", "From arrival to the first step.", lambda stats: stats.waiting_s),
    ("vllm:request_inference_time_seconds", "From the first step to the last token.", lambda stats: stats.computing_s),
    ("vllm:request_prefill_time_seconds", "From the first step to the first token.", lambda stats: stats.prompt_s),
    ("vllm:request_decode_time_seconds", "From first token to last.", lambda stats: stats.answer_s),
    ("vllm:request_time_per_output_token_seconds", "Mean of a request.", lambda stats: stats.mean_token_s),
    ("vllm:request_prompt_tokens", "Tokens of a prompt.", lambda stats: stats.num_prompt_tokens),
    ("vllm:request_generation_tokens", "Tokens of an answer.", lambda stats: stats.num_output_tokens),
    ("vllm:request_params_max_tokens", "Most tokens asked for.", lambda stats: stats.max_tokens),
)


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
        yield self._histogram("vllm:inter_token_latency_seconds", "From each token to the next.", stats.next_token_s)
        # Its name until vLLM 0.11, which dashboards still ask for.
        yield self._histogram("vllm:time_per_output_token_seconds", "From each token to the next.", stats.next_token_s)
        yield self._histogram("vllm:iteration_tokens_total", "Tokens computed in a step.", stats.step_tokens)
        for name, about, read in _OF_REQUESTS:
            yield self._histogram(name, about, read(stats.requests))
        yield from self._drafts(stats.drafts)
        yield from self._adapters()
        yield from self._transfers()
        yield self._sleep_state()
        host = pool.host
        yield self._gauge(
            "pointsman_engine_host_kv_usage_ratio",
            "KV blocks in use in host memory, 0 to 1.",
            host.num_cached / host.num_blocks if host.num_blocks else 0,
        )
        yield self._gauge(
            "pointsman_engine_queued_prefill_tokens",
            "Uncached prompt tokens not computed yet, waiting and running.",
            scheduler.num_queued_prefill_tokens,
        )
        yield self._load()

    def _load(self) -> Metric:
        family = GaugeMetricFamily(
            "pointsman_engine_load_seconds", "What each phase of the start took.", labels=[*self._labels, "phase"]
        )
        for phase, took_s in self._core.stats.load_s.items():
            family.add_metric([*self._labels.values(), phase], took_s)
        return family

    def _adapters(self) -> Iterator[Metric]:
        """What runs, what waits, and where each loaded adapter lies; idle ones included."""
        scheduler = self._core.scheduler
        adapters = list(scheduler.adapters)
        requests = {
            "max_lora": str(scheduler.adapters.num_slots),
            "running_lora_adapters": _names(scheduler.running),
            "waiting_lora_adapters": _names(scheduler.waiting),
        }
        family = GaugeMetricFamily(
            "vllm:lora_requests_info", "Adapters of running and of waiting requests.", labels=list(requests)
        )
        family.add_metric(list(requests.values()), time.time())
        yield family
        facts = [*self._labels, "adapter_name", "level", "pinned", "rank"]
        family = GaugeMetricFamily("vllm:lora_adapter_loaded", "Where each adapter lies.", labels=facts)
        for adapter in adapters:
            level = "cpu" if adapter.slot is None else "gpu"
            pinned = str(adapter.is_pinned).lower()
            family.add_metric([*self._labels.values(), adapter.name, level, pinned, str(adapter.rank)], 1)
        yield family
        num_in_slots = sum(adapter.slot is not None for adapter in adapters)
        yield self._gauge("vllm:num_gpu_loaded_lora_adapters", "Adapters in the device's slots.", num_in_slots)
        yield self._gauge("vllm:num_cpu_loaded_lora_adapters", "Adapters in host memory.", len(adapters))
        yield self._gauge("vllm:max_gpu_lora_adapters", "The device's slots.", scheduler.adapters.num_slots)
        yield self._counter(
            "pointsman_engine_lora_crowded_out",
            "Adapters that left host memory for new ones.",
            scheduler.adapters.num_crowded_out,
        )

    def _transfers(self) -> Iterator[Metric]:
        done = self._core.stats.transfer
        yield self._counter(
            "vllm:external_prefix_cache_queries", "Prompt tokens asked of other engines.", done.num_wanted_tokens
        )
        yield self._counter(
            "vllm:external_prefix_cache_hits", "Prompt tokens got from other engines.", done.num_fetched_tokens
        )
        labels = [*self._labels, "direction"]
        for name, about, fetched, sent in (
            ("bytes", "KV moved between engines.", done.fetched_bytes, done.sent_bytes),
            ("seconds", "Time that moving KV took.", done.fetched_s, done.sent_s),
        ):
            family = CounterMetricFamily(f"pointsman_engine_kv_transfer_{name}", about, labels=labels)
            family.add_metric([*self._labels.values(), "in"], fetched)
            family.add_metric([*self._labels.values(), "out"], sent)
            yield family
        yield self._counter(
            "pointsman_engine_kv_transfer_failures",
            "KV that was not to be had, or not asked for properly.",
            done.num_failures,
        )

    def _sleep_state(self) -> Metric:
        level = self._core.sleep_level
        family = GaugeMetricFamily(
            "vllm:engine_sleep_state", "What of the engine is in memory.", labels=[*self._labels, "sleep_state"]
        )
        for state, at_level in (("awake", None), ("weights_offloaded", 1), ("discard_all", 2)):
            family.add_metric([*self._labels.values(), state], float(level == at_level))
        return family

    def _drafts(self, drafts: DraftStats) -> Iterator[Metric]:
        yield self._counter("vllm:spec_decode_num_drafts", "Guesses made.", drafts.num_drafts)
        yield self._counter("vllm:spec_decode_num_draft_tokens", "Tokens guessed.", drafts.num_tokens)
        yield self._counter("vllm:spec_decode_num_accepted_tokens", "Tokens guessed right.", drafts.num_accepted)
        family = CounterMetricFamily(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Tokens guessed right, by their place in the guess.",
            labels=[*self._labels, "position"],
        )
        for place, number in enumerate(drafts.num_accepted_at):
            family.add_metric([*self._labels.values(), str(place)], number)
        yield family

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


def _names(sequences: Iterable[Sequence]) -> str:
    """The adapters' names, each once, with commas between."""
    names = {sequence.request.adapter for sequence in list(sequences)}
    return ",".join(sorted(name for name in names if name is not None))
