"""Microseconds of the engine's own Python a step, without a model: the core alone, and the loop with its readers.

Steps the engine's torch-free files. Knows nothing of sockets, tokenizers or tensors.
"""

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from time import perf_counter_ns, process_time_ns

from rich.console import Console
from rich.table import Table

from engine.batch import Batch
from engine.blocks import BlockPool
from engine.core import EngineCore
from engine.loop import EngineLoop, OutputStream
from engine.sampling import Sampling
from engine.scheduler import Scheduler
from engine.sequence import Request

BATCHES = (1, 32, 256)
BLOCK_SIZE = 16
NUM_STEPS = 400
PROMPT_TOKENS = 100


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Microseconds a decode step: the median of the core's plan and commit; all CPU time of the loop, a step."""

    core_us: float
    loop_us: float


def measure_engine(num_rounds: int) -> dict[int, StepCosts]:
    """Costs by batch size; the best of so many rounds, as whatever else runs here can only add."""
    with _no_collections():
        return {size: _best([_costs(size) for _ in range(num_rounds)]) for size in BATCHES}


def print_steps(costs: dict[int, StepCosts]) -> None:
    table = Table(title="engine: microseconds a step, no model", title_justify="left")
    for header in ("batch", "core", "core and loop, readers included"):
        table.add_column(header, justify="right")
    for size, cost in costs.items():
        table.add_row(str(size), f"{cost.core_us:.1f}", f"{cost.loop_us:.1f}")
    Console().print(table)


def _costs(batch_size: int) -> StepCosts:
    return StepCosts(_core_us(batch_size), asyncio.run(_loop_us(batch_size)))


def _best(rounds: list[StepCosts]) -> StepCosts:
    return StepCosts(min(cost.core_us for cost in rounds), min(cost.loop_us for cost in rounds))


def _core_us(batch_size: int) -> float:
    core, times_ns = _core(batch_size), []
    for request in _requests(batch_size):
        core.add(request)
    while core.has_work:
        start = perf_counter_ns()
        batch = core.plan()
        planned = perf_counter_ns()
        results = _compute(batch)
        computed = perf_counter_ns()
        core.commit(batch, results, start / 1e9)
        times_ns.append(perf_counter_ns() - computed + planned - start)
    return median(times_ns) / 1e3


async def _loop_us(batch_size: int) -> float:
    """All of the process's CPU time, less what making the tokens takes."""
    computing_ns = 0

    def compute(batch: Batch) -> list[int | None]:
        nonlocal computing_ns
        start = process_time_ns()
        results = _compute(batch)
        computing_ns += process_time_ns() - start
        return results

    engine = EngineLoop(_core(batch_size), compute)
    engine.start()
    start = process_time_ns()
    async with asyncio.TaskGroup() as readers:
        for request in _requests(batch_size):
            readers.create_task(_read(engine.submit(request)))
    spent_ns = process_time_ns() - start - computing_ns
    engine.stop("measured")
    await asyncio.to_thread(engine.join, 10)
    return spent_ns / NUM_STEPS / 1e3


async def _read(stream: OutputStream) -> None:
    with stream:
        async for _ in stream:
            pass


def _core(batch_size: int) -> EngineCore:
    num_blocks = batch_size * -(-(PROMPT_TOKENS + NUM_STEPS) // BLOCK_SIZE)
    budget = batch_size * PROMPT_TOKENS
    return EngineCore(Scheduler(BlockPool(num_blocks, BLOCK_SIZE), batch_size, budget))


def _requests(batch_size: int) -> Iterator[Request]:
    for number in range(batch_size):
        prompt = tuple(range(number, number + PROMPT_TOKENS))
        yield Request(str(number), prompt, Sampling(max_tokens=NUM_STEPS, eos_token_ids=frozenset({0})), 0.0)


def _compute(batch: Batch) -> list[int | None]:
    return [1 if chunk.samples else None for chunk in batch.chunks]


@contextmanager
def _no_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
