"""Whatever happens to a request and beside it, its greedy tokens are those that it would get alone.

The model is small, random and in float32; alone is computed without cache, paging or batch, with the adapter's weights
merged into the model's.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.adapters import Adapter
from engine.core import EngineCore
from engine.drafts import Drafting
from engine.lora import read_lora
from engine.model.kv_cache import KVCache
from engine.model.low_rank import Slots
from engine.model.weights import weight_shapes
from engine.runner import Runner
from engine.sequence import FinishReason, Request
from tests.engine.lora_folder import write_lora
from tests.engine.model.tiny_llama import Weights, dense_greedy, tiny_config, tiny_llama, tiny_weights
from tests.engine.requests import BLOCK_SIZE, core, request

CONFIG = tiny_config()
WEIGHTS = tiny_weights(CONFIG)
MODEL = tiny_llama(CONFIG)
CPU = torch.device("cpu")
SHARED = tuple(range(40, 40 + 4 * BLOCK_SIZE))
# Different ranks and projections; the third is more than there are slots for.
ADAPTERS: dict[str, dict[str, Any]] = {
    "red": {"seed": 1, "rank": 2},
    "green": {"seed": 2, "rank": 8, "projections": ("q_proj", "v_proj", "down_proj")},
    "blue": {"seed": 3, "rank": 4, "alpha": 3.0},
}


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request, how many steps after the one before it comes, and after how many more it is aborted, if it is."""

    request: Request
    steps_before: int
    steps_to_abort: int | None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    for name, options in ADAPTERS.items():
        write_lora(folder / name, weight_shapes(CONFIG), **options)
    return folder


@cache
def merged(folder: Path, adapter: str | None) -> Weights:
    if adapter is None:
        return WEIGHTS
    added = write_lora(folder / "again" / adapter, weight_shapes(CONFIG), **ADAPTERS[adapter])
    return {name: weight + added[name] if name in added else weight for name, weight in WEIGHTS.items()}


@cache
def alone(folder: Path, prompt: tuple[int, ...], adapter: str | None, num_tokens: int) -> list[int]:
    return dense_greedy(CONFIG, merged(folder, adapter), prompt, num_tokens)


def runner_for(engine: EngineCore, folder: Path) -> Runner:
    pool, slots = engine.scheduler.pool, Slots(torch.float32, CPU)
    for name in ADAPTERS:
        found = read_lora(folder / name, weight_shapes(CONFIG), max_rank=8)
        adapter = Adapter(name, name, found.rank, found.digest, engine.scheduler.adapters.next_load())
        engine.scheduler.adapters.add(adapter)
        slots.keep(adapter, found.weights)
    device = KVCache.allocate(CONFIG, pool.num_blocks, BLOCK_SIZE, torch.float32, CPU)
    host = KVCache.allocate(CONFIG, max(pool.host.num_blocks, 1), BLOCK_SIZE, torch.float32, CPU)
    return Runner(MODEL, device, host, slots)


arrivals = st.lists(
    st.builds(
        lambda num_shared, own, adapter, salt, priority, max_tokens, before, to_abort: Arrival(
            request(
                SHARED[: num_shared * BLOCK_SIZE] + tuple(own),
                adapter=adapter,
                salt=salt,
                priority=priority,
                max_tokens=max_tokens,
            ),
            before,
            to_abort,
        ),
        st.integers(0, 4),
        st.lists(st.integers(1, 3), min_size=1, max_size=9),
        st.sampled_from([None, None, *ADAPTERS]),
        st.sampled_from([None, None, "tenant"]),
        st.integers(-1, 1),
        st.integers(1, 10),
        st.integers(0, 6),
        st.none() | st.integers(0, 12),
    ),
    min_size=1,
    max_size=10,
)
machines = st.fixed_dictionaries(
    {
        "num_blocks": st.integers(9, 24),
        "num_host_blocks": st.sampled_from([0, 3, 40]),
        "max_num_seqs": st.integers(1, 5),
        "max_num_batched_tokens": st.integers(5, 40),
        "num_slots": st.integers(1, 2),
        "num_draft_tokens": st.sampled_from([0, 3]),
    }
)


def check(folder: Path, machine: dict[str, int], coming: list[Arrival]) -> EngineCore:
    drafting = Drafting(machine["num_draft_tokens"])
    engine = core(**{name: value for name, value in machine.items() if name != "num_draft_tokens"})
    engine.scheduler.drafting = drafting if drafting.num_tokens else None
    runner, outputs, aborted = runner_for(engine, folder), dict[str, list[int]](), set[str]()
    todo = list(coming)
    aborts: dict[int, list[str]] = {}
    step, next_arrival = 0, todo[0].steps_before
    while todo or engine.has_work:
        while todo and step >= next_arrival:
            arrival = todo.pop(0)
            engine.add(arrival.request)
            if arrival.steps_to_abort is not None:
                aborts.setdefault(step + arrival.steps_to_abort, []).append(arrival.request.id)
            next_arrival = step + todo[0].steps_before if todo else 0
        for name in aborts.pop(step, []):
            aborted |= {name} if engine.scheduler.find(name) else set()
            engine.abort(name)
        take_step(engine, runner, outputs)
        step += 1
    for arrival in coming:
        asked = arrival.request
        expected, found = (
            alone(folder, asked.prompt, asked.adapter, asked.sampling.max_tokens),
            outputs.get(asked.id, []),
        )
        assert found == (expected[: len(found)] if asked.id in aborted else expected)
    assert engine.stats.finished[FinishReason.LENGTH] == len(coming) - len(aborted)
    assert engine.scheduler.pool.num_used == 0
    return engine


def take_step(engine: EngineCore, runner: Runner, outputs: dict[str, list[int]]) -> None:
    batch = engine.plan()
    if batch.chunks:
        for output in engine.commit(batch, runner.run(batch), 0.0):
            outputs.setdefault(output.request_id, []).extend(output.token_ids)
    scheduler, pool = engine.scheduler, engine.scheduler.pool
    assert batch.num_tokens <= scheduler.max_num_batched_tokens
    assert scheduler.num_running <= scheduler.max_num_seqs
    used = {block for sequence in scheduler.running for block in sequence.table}
    assert pool.num_used == len(used)
    assert pool.num_free + pool.num_used + pool.num_cached == pool.num_blocks
    assert pool.host.num_free + pool.host.num_cached == pool.host.num_blocks
    names = {sequence.request.adapter for sequence in scheduler.running} - {None}
    assert len(names) <= scheduler.adapters.num_slots
    assert all(adapter.num_running == names_running(engine, adapter.name) for adapter in scheduler.adapters)


def names_running(engine: EngineCore, name: str) -> int:
    return sum(sequence.request.adapter == name for sequence in engine.scheduler.running)


@given(machine=machines, coming=arrivals)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_interleaving_gives_each_request_the_tokens_that_it_gets_alone(
    folder: Path, machine: dict[str, int], coming: list[Arrival]
) -> None:
    check(folder, machine, coming)


@pytest.mark.slow
@given(machine=machines, coming=arrivals)
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_very_many_interleavings_do_too(folder: Path, machine: dict[str, int], coming: list[Arrival]) -> None:
    check(folder, machine, coming)


def crowd(priority: int = 0) -> list[Arrival]:
    """Twelve that come one after the other, with what they share and what they do not."""
    names = [None, *ADAPTERS]
    prompts = [(*SHARED[: index % 4 * BLOCK_SIZE], index) for index in range(12)]
    return [
        Arrival(request(prompt, adapter=names[index % 4], priority=priority, max_tokens=9), 1, None)
        for index, prompt in enumerate(prompts)
    ]


@pytest.mark.parametrize(("num_host_blocks", "num_draft_tokens"), [(0, 0), (40, 3)])
def test_a_crowd_meets_all_of_it(folder: Path, num_host_blocks: int, num_draft_tokens: int) -> None:
    """What the random ones are to meet does happen: hits, preemptions, loads from the host tier, changes of slots."""
    machine = {
        "num_blocks": 12,
        "num_host_blocks": num_host_blocks,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 9,
        "num_slots": 2,
        "num_draft_tokens": num_draft_tokens,
    }
    coming = [*crowd(), *crowd(priority=-1), *crowd()]
    engine = check(folder, machine, coming)
    assert engine.scheduler.num_hit_tokens > 0
    assert engine.scheduler.num_preemptions > 0
    assert (engine.scheduler.pool.host.num_cached > 0) == (num_host_blocks > 0)
    assert (engine.stats.drafts.num_accepted > 0) == (num_draft_tokens > 0)


def test_adapters_change_what_is_said(folder: Path) -> None:
    """Else the others would prove nothing."""
    prompt = (*SHARED, 1)
    answers = {tuple(alone(folder, prompt, name, 10)) for name in (None, *ADAPTERS)}
    assert len(answers) == 1 + len(ADAPTERS)
