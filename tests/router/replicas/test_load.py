from pathlib import Path

import pytest

from router.core import Load
from router.replicas.adapters import Slots
from router.replicas.fetch import open_session
from router.replicas.load import find_page, parse_block_size, parse_engine, parse_load, parse_num_blocks, parse_slots
from tests.router.replicas.fakes import FakeReplica

VLLM_PAGE = Path("tests/fixtures/vllm-0.32-cpu/metrics.txt").read_bytes()

SGLANG_PAGE = b"""# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",model_name="a} b"} 3.0
sglang:num_queue_reqs{engine_type="unified",model_name="a} b"} 5.0
sglang:token_usage{engine_type="unified",model_name="a} b"} 0.25
sglang:prompt_tokens_total{model_name="a} b"} 9000.0
sglang:cached_tokens_total{cache_source="device",model_name="a} b"} 2000.0
sglang:cached_tokens_total{cache_source="host",model_name="a} b"} 500.0
sglang:cache_config_info{page_size="64",num_pages="1000"} 1.0
"""
TENSORRT_PAGE = b"""trtllm_num_requests_running 2
trtllm_num_requests_waiting 1
trtllm_kv_cache_utilization 0.5
trtllm_kv_cache_tokens_per_block 32
"""
# As the backend's README shows it, of two instances of one model.
TRITON_PAGE = b"""# HELP nv_trt_llm_request_metrics TRT LLM request metrics
# TYPE nv_trt_llm_request_metrics gauge
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 3
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="context",version="1"} 1
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 5
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="max",version="1"} 512
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="active",version="1"} 8
# TYPE nv_trt_llm_kv_cache_block_metrics gauge
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm",version="1"} 0.4875
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="tensorrt_llm",version="1"} 64
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="tensorrt_llm",version="1"} 3039
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="free",model="tensorrt_llm",version="1"} 3194
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="tensorrt_llm",version="1"} 6233
nv_inference_pending_request_count{model="tensorrt_llm",version="1"} 9
"""
OUR_PAGE = b"""vllm:num_requests_running{model_name="m"} 4
vllm:num_requests_waiting{model_name="m"} 6
vllm:kv_cache_usage_perc{model_name="m"} 0.75
vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1
pointsman_engine_queued_prefill_tokens{model_name="m"} 12345
"""


def vllm_page(**values: str) -> bytes:
    return "".join(f"vllm:{name} {value}\n" for name, value in values.items()).encode()


def test_a_real_page_of_an_idle_vllm_is_read() -> None:
    assert parse_load(VLLM_PAGE, 7.0) == Load(at=7.0, running=0, waiting=0, kv_used_ratio=0.0, computed_tokens=368)
    assert parse_block_size(VLLM_PAGE) == 128


def test_a_real_page_with_two_ranks_is_summed_and_its_kv_use_averaged() -> None:
    page = VLLM_PAGE
    for name, first, second in (
        (b"num_requests_running", b"3.0", b"4.0"),
        (b"num_requests_waiting", b"1.0", b"10.0"),
        (b"kv_cache_usage_perc", b"0.5", b"0.7"),
    ):
        labels = b'{engine="%d",model_name="smollm2"} '
        line = b"vllm:" + name + labels % 0
        assert line + b"0.0" in page
        page = page.replace(line + b"0.0", line + first + b"\nvllm:" + name + labels % 1 + second)
    load = parse_load(page, 0.0)
    assert load is not None
    assert (load.running, load.waiting) == (7, 11)
    assert load.kv_used_ratio == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("page", "load", "block_size"),
    [
        (SGLANG_PAGE, Load(1.0, 3, 5, 0.25, computed_tokens=6500), 64),
        (TENSORRT_PAGE, Load(1.0, 2, 1, 0.5), 32),
        (TRITON_PAGE, Load(1.0, 5, 3, 0.4875), 64),
        (OUR_PAGE, Load(1.0, 4, 6, 0.75, queued_tokens=12345), 16),
    ],
)
def test_each_dialect_is_read(page: bytes, load: Load, block_size: int) -> None:
    assert parse_load(page, 1.0) == load
    assert parse_block_size(page) == block_size


@pytest.mark.parametrize(
    ("page", "engine", "num_blocks"),
    [
        (VLLM_PAGE, "vllm", 182),
        (SGLANG_PAGE, "sglang", 1000),
        (TENSORRT_PAGE + b"trtllm_kv_cache_max_blocks 77\n", "tensorrt-llm", 77),
        (TENSORRT_PAGE, "tensorrt-llm", None),
        (TRITON_PAGE, "triton-tensorrt-llm", 6233),
        (b"pointsman_engine_queued_prefill_tokens 5\n", "pointsman", None),
        (b"<html>", None, None),
    ],
)
def test_a_page_says_which_engine_it_is_and_how_many_blocks_it_has(
    page: bytes, engine: str | None, num_blocks: int | None
) -> None:
    assert parse_engine(page) == engine
    assert parse_num_blocks(page) == num_blocks


def test_names_that_only_begin_alike_are_not_counted() -> None:
    page = vllm_page(num_requests_running="1", num_requests_waiting="2")
    page += b'vllm:num_requests_waiting_by_reason{reason="capacity"} 9\n'
    page += b"# HELP vllm:num_requests_running 5\nsum:vllm:num_requests_running 7\n"
    load = parse_load(page, 0.0)
    assert load is not None
    assert (load.running, load.waiting) == (1, 2)


def test_the_old_name_of_the_kv_use_is_known() -> None:
    load = parse_load(vllm_page(num_requests_running="1", gpu_cache_usage_perc="0.9"), 0.0)
    assert load is not None
    assert load.kv_used_ratio == 0.9


@pytest.mark.parametrize("value", ["NaN", "+Inf", "", "many"])
def test_values_that_are_no_numbers_are_skipped(value: str) -> None:
    load = parse_load(vllm_page(num_requests_running="1", num_requests_waiting=value), 0.0)
    assert load is not None
    assert load.waiting == 0


@pytest.mark.parametrize("page", [b"", b"<html>", b"process_cpu_seconds_total 5\n", b"vllm:num_requests_running"])
def test_a_page_of_no_engine_is_no_load(page: bytes) -> None:
    assert parse_load(page, 0.0) is None
    assert parse_block_size(page) is None


def test_a_timestamp_after_the_value_is_ignored() -> None:
    load = parse_load(b'vllm:num_requests_running{a="b"} 5 1700000000000', 0.0)
    assert load is not None
    assert load.running == 5


def test_other_labels_that_end_alike_are_not_the_block_size() -> None:
    page = vllm_page(num_requests_running="1")
    page += b'vllm:cache_config_info{hash_block_size="64",mamba_block_size="8",block_size="32"} 1\n'
    assert parse_block_size(page) == 32


@pytest.mark.parametrize("text", ["None", "", "0", "x"])
def test_a_block_size_that_is_no_size_is_unknown(text: str) -> None:
    page = vllm_page(num_requests_running="1") + f'vllm:cache_config_info{{block_size="{text}"}} 1\n'.encode()
    assert parse_block_size(page) is None


async def test_the_page_is_found_where_the_engine_has_it() -> None:
    async with FakeReplica("m") as replica, open_session() as session:
        assert await find_page(session, replica.spec, 5.0) is None
        replica.answers["/prometheus/metrics"] = (200, TENSORRT_PAGE)
        assert await find_page(session, replica.spec, 5.0) == ("/prometheus/metrics", TENSORRT_PAGE)
        replica.answers["/metrics"] = (200, "[]")
        assert await find_page(session, replica.spec, 5.0) == ("/prometheus/metrics", TENSORRT_PAGE)
        replica.answers["/metrics"] = (200, OUR_PAGE)
        assert await find_page(session, replica.spec, 5.0) == ("/metrics", OUR_PAGE)


SLOTS = b"""# HELP vllm:lora_requests_info Adapters of running and of waiting requests.
vllm:lora_requests_info{max_lora="2",running_lora_adapters="old",waiting_lora_adapters=""} 1.0e+09
vllm:lora_requests_info{max_lora="2",running_lora_adapters="red,blue",waiting_lora_adapters="gold"} 1.7e+09
"""
LOADED = b"""vllm:lora_adapter_loaded{adapter_name="red",engine="0",level="gpu",pinned="false",rank="8"} 1.0
vllm:lora_adapter_loaded{adapter_name="green",engine="0",level="cpu",pinned="false",rank="8"} 1.0
vllm:lora_adapter_loaded{adapter_name="blue",engine="0",level="gpu",pinned="false",rank="8"} 1.0
vllm:num_gpu_loaded_lora_adapters{engine="0"} 2.0
vllm:max_gpu_lora_adapters{engine="0"} 3.0
"""


def test_activity_alone_says_who_works_and_how_many_slots_there_are() -> None:
    assert parse_slots(SLOTS, 7.0) == Slots(7.0, 2, None, frozenset(("red", "blue", "gold")))


def test_residency_is_taken_from_where_each_adapter_lies() -> None:
    slots = parse_slots(SLOTS + LOADED, 7.0)
    assert slots is not None
    assert (slots.num_slots, slots.resident) == (3, frozenset(("red", "blue")))


def test_an_engine_that_says_how_many_lie_there_says_so_of_none_too() -> None:
    slots = parse_slots(b'vllm:num_gpu_loaded_lora_adapters{engine="0"} 0.0\n', 7.0)
    assert slots == Slots(7.0, None, frozenset(), frozenset())


def test_a_page_without_adapters_says_nothing_of_them() -> None:
    assert parse_slots(b"vllm:num_requests_running 1\n", 7.0) is None
