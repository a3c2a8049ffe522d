"""What a replica's metrics page says of its load. Knows engines' series names; knows no pools and no leases.

Only the few series that routing needs are looked for, as byte strings: a full parse of a page costs milliseconds, twice
a second for each replica.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import aiohttp

from router.core import Load
from router.errors import UpstreamError
from router.replicas.adapters import Slots
from router.replicas.fetch import fetch
from router.spec import ReplicaSpec

PATHS = ("/metrics", "/prometheus/metrics")  # the second is trtllm-serve's


@dataclass(frozen=True, slots=True)
class Dialect:
    """Names of one engine's series. `marker` is a series that only its pages have.

    `kv_used_ratio` lists names by age, newest first. Size and number of blocks are labels of an info series, or series.
    Behind a `|` stands the label that the wanted ones of a series have.
    """

    name: str
    marker: bytes
    running: bytes
    waiting: bytes
    kv_used_ratio: tuple[bytes, ...]
    block_size: bytes
    block_size_label: bytes | None = None
    num_blocks: bytes | None = None
    num_blocks_label: bytes | None = None
    queued_tokens: bytes | None = None
    prompt_tokens: bytes | None = None
    cached_tokens: bytes | None = None


VLLM = Dialect(
    name="vllm",
    marker=b"vllm:num_requests_running",
    running=b"vllm:num_requests_running",
    waiting=b"vllm:num_requests_waiting",
    kv_used_ratio=(b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc"),
    block_size=b"vllm:cache_config_info",
    block_size_label=b"block_size",
    num_blocks=b"vllm:cache_config_info",
    num_blocks_label=b"num_gpu_blocks",
    prompt_tokens=b"vllm:prompt_tokens_total",
    cached_tokens=b"vllm:prefix_cache_hits_total",
)
SGLANG = Dialect(
    name="sglang",
    marker=b"sglang:num_running_reqs",
    running=b"sglang:num_running_reqs",
    waiting=b"sglang:num_queue_reqs",
    kv_used_ratio=(b"sglang:token_usage",),
    block_size=b"sglang:cache_config_info",
    block_size_label=b"page_size",
    num_blocks=b"sglang:cache_config_info",
    num_blocks_label=b"num_pages",
    prompt_tokens=b"sglang:prompt_tokens_total",
    cached_tokens=b"sglang:cached_tokens_total",
)
TENSORRT_LLM = Dialect(
    name="tensorrt-llm",
    marker=b"trtllm_num_requests_running",
    running=b"trtllm_num_requests_running",
    waiting=b"trtllm_num_requests_waiting",
    kv_used_ratio=(b"trtllm_kv_cache_utilization",),
    block_size=b"trtllm_kv_cache_tokens_per_block",
    num_blocks=b"trtllm_kv_cache_max_blocks",
)
_TRITON_REQUESTS, _TRITON_BLOCKS = b"nv_trt_llm_request_metrics", b"nv_trt_llm_kv_cache_block_metrics"
TRITON = Dialect(
    name="triton-tensorrt-llm",
    marker=_TRITON_REQUESTS,
    running=_TRITON_REQUESTS + b'|request_type="scheduled"',
    waiting=_TRITON_REQUESTS + b'|request_type="waiting"',
    kv_used_ratio=(_TRITON_BLOCKS + b'|kv_cache_block_type="fraction"',),
    block_size=_TRITON_BLOCKS + b'|kv_cache_block_type="tokens_per"',
    num_blocks=_TRITON_BLOCKS + b'|kv_cache_block_type="max"',
)
# Our engine speaks vLLM's names and adds one; so it stands first.
POINTSMAN = replace(
    VLLM,
    name="pointsman",
    marker=b"pointsman_engine_queued_prefill_tokens",
    queued_tokens=b"pointsman_engine_queued_prefill_tokens",
)
DIALECTS = (POINTSMAN, VLLM, SGLANG, TENSORRT_LLM, TRITON)


async def find_page(session: aiohttp.ClientSession, spec: ReplicaSpec, timeout_s: float) -> tuple[str, bytes] | None:
    """Path and text of the first page that we can read; None where there is none, which is no fault."""
    for path in PATHS:
        page = await read_page(session, spec, path, timeout_s)
        if page is not None and _dialect(page) is not None:
            return path, page
    return None


async def read_page(session: aiohttp.ClientSession, spec: ReplicaSpec, path: str, timeout_s: float) -> bytes | None:
    try:
        answer = await fetch(session, spec, path, timeout_s)
    except UpstreamError:
        return None
    return answer.body if answer.status == 200 else None


def parse_load(page: bytes, now: float) -> Load | None:
    """Requests are summed over the page's series (one per data-parallel rank), the KV use is their mean.

    None for a page of no engine we know.
    """
    dialect = _dialect(page)
    if dialect is None:
        return None
    ratios = next(filter(None, (_values(page, name) for name in dialect.kv_used_ratio)), [0.0])
    queued = _values(page, dialect.queued_tokens) if dialect.queued_tokens is not None else []
    return Load(
        at=now,
        running=int(sum(_values(page, dialect.running))),
        waiting=int(sum(_values(page, dialect.waiting))),
        kv_used_ratio=sum(ratios) / len(ratios),
        queued_tokens=int(sum(queued)) if queued else None,
        computed_tokens=_computed_tokens(page, dialect),
    )


def _computed_tokens(page: bytes, dialect: Dialect) -> int | None:
    if dialect.prompt_tokens is None or dialect.cached_tokens is None:
        return None
    prompts = _values(page, dialect.prompt_tokens)
    return int(sum(prompts) - sum(_values(page, dialect.cached_tokens))) if prompts else None


def parse_block_size(page: bytes) -> int | None:
    """Tokens per KV block; None where the page does not say."""
    dialect = _dialect(page)
    return None if dialect is None else _count(page, dialect.block_size, dialect.block_size_label)


def parse_num_blocks(page: bytes) -> int | None:
    """KV blocks in device memory, of one data-parallel rank; None where the page does not say."""
    dialect = _dialect(page)
    if dialect is None or dialect.num_blocks is None:
        return None
    return _count(page, dialect.num_blocks, dialect.num_blocks_label)


def parse_engine(page: bytes) -> str | None:
    """Which engine's page it is; None where we know no such engine."""
    dialect = _dialect(page)
    return None if dialect is None else dialect.name


def parse_slots(page: bytes, asked_at: float) -> Slots | None:
    """Which adapters lie or work there, by vLLM's names; None where the page tells of no adapters. Of several series of
    activity the newest counts: its value is when it was made."""
    where, counts = (
        list(_samples(page, b"vllm:lora_adapter_loaded")),
        _values(page, b"vllm:num_gpu_loaded_lora_adapters"),
    )
    activity = max(_samples(page, b"vllm:lora_requests_info"), key=lambda sample: sample[1], default=None)
    if not where and not counts and activity is None:
        return None
    info = b"" if activity is None else activity[0]
    on_device = [
        _label(labels, b"adapter_name") for labels, value in where if _label(labels, b"level") == b"gpu" and value
    ]
    working = _label(info, b"running_lora_adapters") + b"," + _label(info, b"waiting_lora_adapters")
    most = _count(page, b"vllm:max_gpu_lora_adapters", None) or _count(page, b"vllm:lora_requests_info", b"max_lora")
    return Slots(asked_at, most, _names(on_device) if where or counts else None, _names(working.split(b",")))


def _names(found: list[bytes]) -> frozenset[str]:
    return frozenset(name.strip().decode("utf-8", "replace") for name in found if name.strip())


def _count(page: bytes, name: bytes, label: bytes | None) -> int | None:
    """A number of 1 or more, in a label of an info series or as the series itself."""
    if label is None:
        values = _values(page, name)
        return int(values[0]) if values and values[0] >= 1 else None
    for labels, _ in _samples(page, name):
        text = _label(labels, label)
        if text.isdigit() and int(text) > 0:
            return int(text)
    return None


def _dialect(page: bytes) -> Dialect | None:
    return next((dialect for dialect in DIALECTS if next(_samples(page, dialect.marker), None) is not None), None)


def _values(page: bytes, series: bytes) -> list[float]:
    name, _, wanted = series.partition(b"|")
    return [value for labels, value in _samples(page, name) if wanted in labels]


def _samples(page: bytes, name: bytes) -> Iterator[tuple[bytes, float]]:
    """Labels and finite value of each sample of one series: lines of `name{labels} value` or `name value`."""
    at = page.find(name)
    while at >= 0:
        end = page.find(b"\n", at)
        line = page[at : end if end >= 0 else len(page)]
        starts_a_line = at == 0 or page[at - 1 : at] == b"\n"
        if starts_a_line and line[len(name) : len(name) + 1] in (b"{", b" "):
            labels, _, rest = line[len(name) :].rpartition(b"}")  # a label's text may hold a brace, a value may not
            value = _number(rest)
            if value is not None:
                yield labels, value
        at = page.find(name, at + len(line))


def _number(text: bytes) -> float | None:
    try:
        value = float(text.split()[0])
    except (IndexError, ValueError):
        return None
    return value if math.isfinite(value) else None


def _label(labels: bytes, name: bytes) -> bytes:
    """Text of one label, empty where it is absent; other labels may end in the same letters."""
    for before in (b"{", b","):
        _, found, rest = labels.partition(before + name + b'="')
        if found:
            return rest.partition(b'"')[0]
    return b""
