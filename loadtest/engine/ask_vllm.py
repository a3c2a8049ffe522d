"""Runs one job in vLLM: a script for the interpreter that has it, JSON in and JSON out.

Knows vLLM's offline class alone: it is not imported from here, and imports nothing of ours. One process, so that its
CPU time can be read; without prefix caching, so that rounds repeat.
"""

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

job = json.load(sys.stdin)
os.environ |= {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "OMP_NUM_THREADS": str(job["threads"]),
}
# Whatever it prints goes to the log.
answer = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

vllm: Any = importlib.import_module("vllm")  # It reads the environment when it is imported.


def main() -> None:
    clock = time.process_time if job["clock"] == "cpu" else time.perf_counter
    started = time.perf_counter()
    llm = vllm.LLM(
        job["model"],
        dtype=job["dtype"],
        max_model_len=2048,
        enforce_eager=True,
        enable_prefix_caching=False,
        max_num_seqs=64,
        disable_log_stats=True,
    )
    load_s = time.perf_counter() - started

    def generate(prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        sampling = vllm.SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)
        made = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False)
        return [list(one.outputs[0].token_ids) for one in made]

    def best_s(call: Callable[[], Any]) -> float:
        took: list[float] = []
        for _ in range(job["num_rounds"]):
            begun = clock()
            call()
            took.append(clock() - begun)
        return min(took)

    def decode(batch: int) -> float:
        prompts = job["prompts"][:batch]
        with_all = best_s(lambda: generate(prompts, job["num_tokens"]))
        with_one = best_s(lambda: generate(prompts, 1))
        return float(batch * (job["num_tokens"] - 1) / (with_all - with_one))

    figures = {
        "answers": [generate([question], job["num_answer_tokens"])[0] for question in job["questions"]],
        "decode": {batch: decode(batch) for batch in job["batches"]},
        "prefill": len(job["prefill"]) / best_s(lambda: generate([job["prefill"]], 1)),
        "turns_ms": {},
        "load_s": load_s,
    }
    json.dump(figures, answer)
    answer.flush()


main()
