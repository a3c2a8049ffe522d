"""Runs one job in Hugging Face transformers: a script for any interpreter that has it, JSON in and JSON out.

Knows transformers alone: it is not imported from here, and imports nothing of ours. Plain `generate` with its default
cache and attention, without gradients.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoModelForCausalLM


def main() -> None:
    job = json.load(sys.stdin)
    clock = time.process_time if job["clock"] == "cpu" else time.perf_counter
    torch.set_num_threads(job["threads"])
    started = time.perf_counter()
    auto: Any = AutoModelForCausalLM
    model = auto.from_pretrained(job["model"], dtype=getattr(torch, job["dtype"])).eval()
    model.generation_config.eos_token_id = None
    load_s = time.perf_counter() - started

    def generate(prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        ids = torch.tensor(prompts)
        options = {"do_sample": False, "max_new_tokens": num_tokens, "min_new_tokens": num_tokens, "pad_token_id": 0}
        with torch.inference_mode():
            made = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
        return [row[len(prompts[0]) :] for row in made.tolist()]

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
    json.dump(figures, sys.stdout)


main()
