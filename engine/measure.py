"""`python -m engine.measure`: how fast this engine prefills and decodes on this machine, and what it answers.

A job comes as JSON on standard input, the figures go as JSON to standard output. Steps the engine as it would serve,
without a port. Must not know what the figures are compared with.
"""

import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from time import perf_counter, process_time
from typing import Literal

import msgspec

from engine.app import build
from engine.config import BLOCK_SIZE, EngineConfig
from engine.core import EngineCore
from engine.loop import RunBatch
from engine.model.attention import kv_dtype
from engine.model.checkpoint import open_checkpoint
from engine.model.kv_cache import bytes_per_block
from engine.model.placement import device_named, dtype_named
from engine.sampling import Sampling
from engine.sequence import Request

_ids = count()


class Job(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Token ids. Each of `batches` counts the first of `prompts`. `turn` is a long prompt of which the engine will have
    seen all but the last `turn_tokens`. The best of `num_rounds` counts: what else runs here can only add. On a busy
    machine, `cpu` time of one thread tells more than time on the wall."""

    model: str
    dtype: str
    quantized: str
    threads: int
    clock: Literal["cpu", "wall"]
    prompts: list[list[int]]
    num_tokens: int
    batches: list[int]
    prefill: list[int]
    turn: list[int]
    turn_tokens: list[int]
    questions: list[list[int]]
    num_answer_tokens: int
    num_rounds: int


class Figures(msgspec.Struct, frozen=True):
    """Tokens a second, by batch size where it matters; milliseconds by new tokens of a turn; greedy answers."""

    decode: dict[int, float]
    prefill: float
    turns_ms: dict[int, float]
    answers: list[list[int]]
    load_s: float
    anonymous_mib: float


def main() -> int:
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    sys.stdout.buffer.write(msgspec.json.encode(measure(job)))
    return 0


def measure(job: Job) -> Figures:
    started = perf_counter()
    config = EngineConfig(
        model=job.model,
        dtype=job.dtype,
        quantized=job.quantized,
        threads=job.threads,
        max_num_seqs=max([*job.batches, 8]),
        kv_cache_gib=_kv_cache_gib(job),
        max_model_len=_longest(job),
    )
    engine = build(config).service.engine
    stepper = _Stepper(engine.core, engine.run_batch, process_time if job.clock == "cpu" else perf_counter)
    load_s = perf_counter() - started
    answers = stepper.generate(job.questions, job.num_answer_tokens)
    return Figures(
        decode={batch: _decode(stepper, job, batch) for batch in job.batches},
        prefill=len(job.prefill) / stepper.best_s(job.num_rounds, lambda: stepper.generate([job.prefill], 1)),
        turns_ms={size: _turn_s(stepper, job, size) * 1e3 for size in job.turn_tokens},
        answers=answers,
        load_s=load_s,
        anonymous_mib=_anonymous_mib(),
    )


def _longest(job: Job) -> int:
    prompts = (*job.prompts, job.prefill, job.turn, *job.questions)
    return max(map(len, prompts)) + job.num_tokens + job.num_answer_tokens


def _kv_cache_gib(job: Job) -> float:
    """Little more than is in use at once, so that all of it has been written before the prefill is timed, as in an
    engine that has run for a while: memory that is written for the first time has to be found by the system."""
    batch = max([*job.batches, len(job.questions)])
    prompts = max(map(len, (*job.prompts, *job.questions))) + max(job.num_tokens, job.num_answer_tokens)
    num_tokens = max(batch * (prompts + BLOCK_SIZE), job.num_rounds * (len(job.turn) + BLOCK_SIZE)) + _longest(job)
    device = device_named("cpu")
    kept = kv_dtype(dtype_named(job.dtype, device), device)
    return num_tokens * bytes_per_block(open_checkpoint(Path(job.model)).config, 1, kept) / 2**30


class _Stepper:
    """Every call has a salt of its own: nothing is found in the cache unless it is asked for."""

    def __init__(self, core: EngineCore, run_batch: RunBatch, clock: Callable[[], float]) -> None:
        self._core = core
        self._run_batch = run_batch
        self._clock = clock

    def generate(self, prompts: list[list[int]], num_tokens: int, salt: str | None = None) -> list[list[int]]:
        """Greedy answers, all at once."""
        salt = salt or f"call {next(_ids)}"
        outputs: dict[str, list[int]] = {}
        for prompt in prompts:
            request = Request(
                id=f"r{next(_ids)}",
                prompt=tuple(prompt),
                sampling=Sampling(max_tokens=num_tokens),
                arrived_s=0.0,
                salt=salt,
            )
            outputs[request.id] = []
            self._core.add(request)
        while self._core.has_work:
            batch = self._core.plan()
            for output in self._core.commit(batch, self._run_batch(batch), 0.0):
                outputs[output.request_id] += output.token_ids
        return list(outputs.values())

    def best_s(self, num_rounds: int, call: Callable[[], object]) -> float:
        took = []
        for _ in range(num_rounds):
            started = self._clock()
            call()
            took.append(self._clock() - started)
        return min(took)


def _decode(stepper: _Stepper, job: Job, batch: int) -> float:
    """Tokens a second behind the first of each."""
    prompts = job.prompts[:batch]
    with_all = stepper.best_s(job.num_rounds, lambda: stepper.generate(prompts, job.num_tokens))
    with_one = stepper.best_s(job.num_rounds, lambda: stepper.generate(prompts, 1))
    return batch * (job.num_tokens - 1) / (with_all - with_one)


def _turn_s(stepper: _Stepper, job: Job, num_new: int) -> float:
    """Until the first token of a turn of which only the last tokens are new."""
    salts = [f"turn {next(_ids)}" for _ in range(job.num_rounds)]
    for salt in salts:
        stepper.generate([job.turn[:-num_new]], 1, salt)
    waiting = iter(salts)
    return stepper.best_s(job.num_rounds, lambda: stepper.generate([job.turn], 1, next(waiting)))


def _anonymous_mib() -> float:
    """Memory that is this process's own: without the files that it maps."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) / 1024


if __name__ == "__main__":
    raise SystemExit(main())
