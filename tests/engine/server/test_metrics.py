import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.core import EngineCore
from engine.server.metrics import EngineMetrics
from tests.engine.requests import add_adapters, core, next_number, request, tokens_by


def samples(metrics: EngineMetrics) -> dict[str, float]:
    """`name{label that is not the replica's}` -> value"""
    found = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            if sample.name != "vllm:lora_requests_info":  # vLLM has no more labels there.
                assert (sample.labels.pop("model_name"), sample.labels.pop("engine")) == ("m", "0")
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def step(engine: EngineCore, now_s: float) -> None:
    batch = engine.plan()
    engine.commit(batch, tokens_by(next_number, batch), now_s)


def test_a_scrape_shows_the_present_state() -> None:
    engine = core(num_blocks=20, max_num_seqs=1)
    metrics = EngineMetrics(engine, "m")
    engine.add(request(range(10)))
    engine.add(request(range(100, 130)))
    step(engine, 0.3)
    now = samples(metrics)
    assert now["vllm:num_requests_running"] == 1
    assert now["vllm:num_requests_waiting"] == 1
    assert now["vllm:kv_cache_usage_perc"] == 3 / 20
    assert now["vllm:cache_config_info{block_size=4,num_gpu_blocks=20}"] == 1
    assert now["pointsman_engine_queued_prefill_tokens"] == 30


def test_a_scrape_shows_the_totals_so_far() -> None:
    engine = core()
    metrics = EngineMetrics(engine, "m")
    for _ in range(2):
        engine.add(request(range(10), max_tokens=2))
        for now_s in (0.3, 0.34):
            step(engine, now_s)
    engine.add(request(name="gone"))
    engine.abort("gone")
    now = samples(metrics)
    assert now["vllm:prefix_cache_queries_total"] == 20
    assert now["vllm:prefix_cache_hits_total"] == 8
    assert now["vllm:prompt_tokens_total"] == 20
    assert now["vllm:generation_tokens_total"] == 4
    assert now["vllm:num_preemptions_total"] == 0
    assert now["vllm:request_success_total{finished_reason=length}"] == 2
    assert now["vllm:request_success_total{finished_reason=abort}"] == 1
    assert now["vllm:request_success_total{finished_reason=stop}"] == 0


def test_a_request_that_ended_is_seen_in_all_its_times_and_sizes() -> None:
    engine = core(max_num_seqs=1)
    metrics = EngineMetrics(engine, "m")
    engine.add(request(range(10), max_tokens=3))
    engine.add(request(range(100, 104), max_tokens=2))
    for now_s in (1.0, 1.25, 2.0, 3.0, 4.0):
        step(engine, now_s)
    now = {name: value for name, value in samples(metrics).items() if name.endswith(("_sum", "_count"))}
    assert now["vllm:e2e_request_latency_seconds_sum"] == 2.0 + 4.0
    assert now["vllm:request_queue_time_seconds_sum"] == 0.0 + 2.0
    assert now["vllm:request_prefill_time_seconds_sum"] == 1.0 + 1.0
    assert now["vllm:request_decode_time_seconds_sum"] == 1.0 + 1.0
    assert now["vllm:request_inference_time_seconds_sum"] == 2.0 + 2.0
    assert now["vllm:request_time_per_output_token_seconds_sum"] == 0.5 + 1.0
    assert now["vllm:inter_token_latency_seconds_count"] == 3
    assert now["vllm:request_prompt_tokens_sum"] == 14
    assert now["vllm:request_generation_tokens_sum"] == 5
    assert now["vllm:request_params_max_tokens_sum"] == 5
    assert now["vllm:iteration_tokens_total_sum"] == 10 + 1 + 1 + 4 + 1
    assert now["vllm:iteration_tokens_total_count"] == 5


def test_guesses_are_counted_by_their_place() -> None:
    engine = core()
    engine.stats.drafts.observe(3, 2)
    engine.stats.drafts.observe(2, 0)
    now = samples(EngineMetrics(engine, "m"))
    assert now["vllm:spec_decode_num_drafts_total"] == 2
    assert now["vllm:spec_decode_num_draft_tokens_total"] == 5
    assert now["vllm:spec_decode_num_accepted_tokens_total"] == 2
    places = [now[f"vllm:spec_decode_num_accepted_tokens_per_pos_total{{position={place}}}"] for place in range(3)]
    assert places == [1, 1, 0]


def test_histograms_cumulate_their_buckets() -> None:
    engine = core()
    metrics = EngineMetrics(engine, "m")
    engine.add(request(max_tokens=3))
    for now_s in (0.3, 0.34, 99.0):
        step(engine, now_s)
    now = samples(metrics)
    assert now["vllm:time_to_first_token_seconds_bucket{le=0.25}"] == 0
    assert now["vllm:time_to_first_token_seconds_bucket{le=0.5}"] == 1
    assert now["vllm:time_to_first_token_seconds_sum"] == 0.3
    assert now["vllm:time_per_output_token_seconds_bucket{le=0.05}"] == 1
    assert now["vllm:time_per_output_token_seconds_bucket{le=80.0}"] == 1
    assert now["vllm:time_per_output_token_seconds_bucket{le=+Inf}"] == 2
    assert now["vllm:time_per_output_token_seconds_count"] == 2


def test_adapters_are_told_where_they_lie_and_what_they_do() -> None:
    engine = core(max_num_seqs=2, num_slots=1)
    add_adapters(engine.scheduler, "blue", "idle", "red")
    metrics = EngineMetrics(engine, "m")
    for adapter in ("blue", "red", "blue"):
        engine.add(request(adapter=adapter))
    step(engine, 0.1)
    now = samples(metrics)
    assert "vllm:lora_requests_info{max_lora=1,running_lora_adapters=blue,waiting_lora_adapters=red}" in now
    for name, level in (("blue", "gpu"), ("idle", "cpu"), ("red", "cpu")):
        assert now[f"vllm:lora_adapter_loaded{{adapter_name={name},level={level},pinned=false,rank=8}}"] == 1
    assert now["vllm:num_gpu_loaded_lora_adapters"] == 1
    assert now["vllm:num_cpu_loaded_lora_adapters"] == 3
    assert now["vllm:max_gpu_lora_adapters"] == 1
    assert now["pointsman_engine_lora_crowded_out_total"] == 0


def test_the_host_tier_and_what_came_from_elsewhere_are_told() -> None:
    engine = core(num_blocks=4, num_host_blocks=8)
    metrics = EngineMetrics(engine, "m")
    assert samples(metrics)["pointsman_engine_host_kv_usage_ratio"] == 0
    for start in (0, 100):
        engine.add(request(range(start, start + 12), max_tokens=1))
        step(engine, 0.1)
    transfer = engine.stats.transfer
    transfer.num_wanted_tokens, transfer.num_fetched_tokens, transfer.fetched_bytes, transfer.sent_s = 20, 16, 640, 0.5
    now = samples(metrics)
    assert now["pointsman_engine_host_kv_usage_ratio"] == 2 / 8
    assert now["vllm:external_prefix_cache_queries_total"] == 20
    assert now["vllm:external_prefix_cache_hits_total"] == 16
    assert now["pointsman_engine_kv_transfer_bytes_total{direction=in}"] == 640
    assert now["pointsman_engine_kv_transfer_seconds_total{direction=out}"] == 0.5


@pytest.mark.parametrize(("level", "state"), [(None, "awake"), (1, "weights_offloaded"), (2, "discard_all")])
def test_the_sleep_state_is_one_of_three(level: int | None, state: str) -> None:
    engine = core()
    if level is not None:
        engine.sleep(level)
    now = samples(EngineMetrics(engine, "m"))
    told = {name for name, value in now.items() if name.startswith("vllm:engine_sleep_state") and value == 1}
    assert told == {f"vllm:engine_sleep_state{{sleep_state={state}}}"}


def test_a_scrape_tells_how_long_the_start_took() -> None:
    engine = core()
    engine.stats.load_s = {"open": 0.5, "weights": 2.0}
    now = samples(EngineMetrics(engine, "m"))
    assert now["pointsman_engine_load_seconds{phase=open}"] == 0.5
    assert now["pointsman_engine_load_seconds{phase=weights}"] == 2.0
