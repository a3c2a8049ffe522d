"""Adapters as PEFT saves them, on two real engines behind two router processes, through the OpenAI SDK."""

from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.engines import EngineProcess, engine_processes
from tests.e2e.fleet import BIN, MODEL, Fleet, get_json, running, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]

PROMPT = "The capital of France is"
WITHIN_S = 120.0


def save_adapter(folder: Path, seed: int) -> Path:
    """Of the shapes of the small model; its B matrices are not zero."""
    torch: Any = import_module("torch")
    transformers, peft = (import_module(name) for name in ("transformers", "peft"))
    sizes = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "vocab_size": 8}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=9, num_key_value_heads=3)
    torch.manual_seed(seed)
    options = peft.LoraConfig(r=4, lora_alpha=16, target_modules=["q_proj", "o_proj"], init_lora_weights=False)
    peft.get_peft_model(transformers.LlamaForCausalLM(config), options).save_pretrained(folder)
    return folder


def order(fleet: Fleet, verb: str, **fields: object) -> tuple[int, dict[str, Any]]:
    answer = httpx.post(f"{fleet.url}/v1/{verb}_lora_adapter", json=fields, timeout=200.0)
    return answer.status_code, answer.json()


def said(fleet: Fleet, model: str) -> str:
    """On a connection of its own, so that any router process may get it."""
    with openai.OpenAI(base_url=f"{fleet.url}/v1", api_key="unused", max_retries=0) as client:
        answer = client.completions.create(model=model, prompt=PROMPT, max_tokens=8, temperature=0)
        return answer.choices[0].text


def holding(engine: EngineProcess) -> set[str]:
    return {card["id"] for card in get_json(f"{engine.url}/v1/models")["data"]} - {MODEL}


def test_adapters_reach_every_engine_and_every_router_process(tmp_path: Path) -> None:
    paths = {name: str(save_adapter(tmp_path / name, seed)) for seed, name in enumerate(("red", "blue"))}
    flags = ["--max-loras", "1"]
    with engine_processes(flags, flags) as engines:
        command = [str(BIN / "pointsman"), "serve", "--workers", "2"]
        for engine in engines:
            command += ["--replica", engine.url]
        with running(command, until="serving") as fleet:
            states = ["ready"] * 2
            wait_until(lambda: [row["state"] for row in fleet.replicas()] == states, WITHIN_S, "both are ready")
            status, answer = order(fleet, "load", lora_name="none", lora_path=str(tmp_path / "nowhere"))
            assert (status, answer["error"]["param"]) == (400, "lora_path")
            assert all(engine.id in answer["error"]["message"] for engine in engines)
            for name, path in paths.items():
                status, answer = order(fleet, "load", lora_name=name, lora_path=path)
                assert (status, [each["state"] for each in answer["replicas"]]) == (200, ["loaded"] * 2)
            assert [holding(engine) for engine in engines] == [{"red", "blue"}] * 2
            words = {model: {said(fleet, model) for _ in range(4)} for model in (MODEL, "red", "blue")}
            assert [len(each) for each in words.values()] == [1, 1, 1], "all say the same, whoever answers"
            assert len(set.union(*words.values())) == 3, "and each model something else"

            engines[1].kill()
            engines[1].start()
            engines[1].wait_ready()
            wait_until(lambda: holding(engines[1]) == {"red", "blue"}, WITHIN_S, "it has been given them again")

            assert order(fleet, "unload", lora_name="red")[0] == 200
            assert [holding(engine) for engine in engines] == [{"blue"}] * 2
            for _ in range(4):
                with pytest.raises(openai.NotFoundError):
                    said(fleet, "red")
            assert said(fleet, "blue") in words["blue"]
