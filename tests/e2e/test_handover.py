"""Prefill and decode on two real engines: the same tokens as from one, whoever fails."""

import json
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import openai
import pytest

from loadtest.peers.process import free_ports
from tests.e2e.engines import EngineProcess, engine_processes
from tests.e2e.fleet import BIN, MODEL, Fleet, running, wait_until
from tests.e2e.sglang_pair import sglang_pair, without_room

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

WITHIN_S = 120.0
WORDS = "the of cat dog river stone house green running slow apple window time light sea".split()


def text(seed: int, num_words: int = 300) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=num_words))


def said(url: str, prompt: str, *, is_stream: bool = False) -> tuple[str, str]:
    """What the model says, and the router's reason."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:
        messages: list[Any] = [{"role": "user", "content": prompt}]
        options: dict[str, Any] = {"model": MODEL, "messages": messages, "max_tokens": 12, "temperature": 0}
        if is_stream:
            streamed = client.chat.completions.with_raw_response.create(stream=True, **options)
            parts = [chunk.choices[0].delta.content or "" for chunk in streamed.parse() if chunk.choices]
            return "".join(parts), streamed.headers["x-pointsman-reason"]
        whole = client.chat.completions.with_raw_response.create(**options)
        return whole.parse().choices[0].message.content or "", whole.headers.get("x-pointsman-reason", "")


def handovers(fleet: Fleet) -> dict[str, float]:
    """By outcome."""
    lines = httpx.get(f"{fleet.admin_url}/metrics").text.splitlines()
    found = [line for line in lines if line.startswith("pointsman_handovers_total{")]
    return {line.split('outcome="')[1].split('"')[0]: float(line.split()[-1]) for line in found}


@contextmanager
def decoding(engine: EngineProcess, fleet: Fleet, count: int, shown_as: str | None = None) -> Iterator[None]:
    """It writes long answers for others, and the router knows."""
    with ExitStack() as stack, httpx.Client(timeout=200.0) as client:
        for number in range(count):
            body = {
                "model": MODEL,
                "prompt": f"Story {number}:",
                "max_tokens": 2000,
                "stream": True,
                "ignore_eos": True,
            }
            stack.enter_context(client.stream("POST", f"{engine.url}/v1/completions", json=body))
        id = shown_as or engine.id
        wait_until(lambda: running_on(fleet, id) == count, WITHIN_S, "the router sees them at work")
        yield


def running_on(fleet: Fleet, id: str) -> object:
    return next(row["running"] for row in fleet.replicas() if row["id"] == id)


def test_a_pair_that_keeps_sglangs_handshake_meets_in_its_room() -> None:
    with sglang_pair() as pair:
        first, second = pair.urls
        command = [str(BIN / "pointsman"), "serve", "--replica", f"{second},role=decode"]
        command += ["--replica", f"{first},role=prefill,bootstrap={pair.bootstrap_port}"]
        with running(command, until="serving") as fleet:
            wait_until(lambda: [row["state"] for row in fleet.replicas()] == ["ready"] * 2, WITHIN_S, "both are ready")
            body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "temperature": 0.5}
            for _ in range(3):
                answer = httpx.post(f"{fleet.url}/v1/chat/completions", json=body, timeout=60.0).json()
                assert answer["choices"][0]["message"]["content"] == "from the second"
            assert pair.asked[0] == pair.asked[1], "both get the same"
            assert {without_room(each) for each in pair.asked[0]} == {json.dumps(body)}
            assert len({each["bootstrap_room"] for each in pair.asked[0]}) == 3
            wait_until(lambda: handovers(fleet) == {"ok": 3.0}, WITHIN_S, "all are counted")


def test_two_engines_that_are_spoken_to_over_grpc_say_what_one_says() -> None:
    ports = free_ports(2)
    flags = [["--kv-transfer-port", "0", "--kv-cache-gib", "0.3", "--grpc-port", str(port)] for port in ports]
    with engine_processes(*flags) as (first, second):
        command = [str(BIN / "pointsman"), "serve", "--kv-transfer-token-s", "1e-6"]
        command += ["--replica", f"grpc://127.0.0.1:{ports[0]},role=prefill"]
        command += ["--replica", f"grpc://127.0.0.1:{ports[1]},role=decode"]
        with running(command, until="serving") as fleet:
            wait_until(lambda: [row["state"] for row in fleet.replicas()] == ["ready"] * 2, WITHIN_S, "both are ready")
            wait_until(
                lambda: httpx.get(f"{fleet.admin_url}/readyz").status_code == 200, WITHIN_S, "the tokenizer is there"
            )
            with decoding(second, fleet, 4, shown_as=f"127.0.0.1:{ports[1]}"):
                answer, reason = said(fleet.url, text(1), is_stream=True)
                assert f"prefill=127.0.0.1:{ports[0]}" in reason
                assert answer == said(first.url, text(1))[0]
                assert handovers(fleet) == {"ok": 1.0}
                # By then the router knows how fast they are, and may find that a pair does not pay.
                assert said(fleet.url, text(2))[0] == said(first.url, text(2))[0]
                assert "pointsman_engine_kv_transfer_bytes_total" in httpx.get(f"{second.url}/metrics").text
            wait_until(lambda: all(row["in_flight"] == 0 for row in fleet.replicas()), WITHIN_S, "nothing is left")


def test_two_engines_say_what_one_says_and_a_lost_half_is_no_failure() -> None:
    hands_out = ["--kv-transfer-port", "0", "--kv-cache-gib", "0.3"]
    with engine_processes(hands_out, hands_out) as (first, second):
        command = [str(BIN / "pointsman"), "serve", "--kv-transfer-token-s", "1e-6"]
        command += ["--replica", f"{first.url},role=prefill", "--replica", f"{second.url},role=decode"]
        with running(command, until="serving") as fleet:
            wait_until(lambda: [row["state"] for row in fleet.replicas()] == ["ready"] * 2, WITHIN_S, "both are ready")
            wait_until(
                lambda: httpx.get(f"{fleet.admin_url}/readyz").status_code == 200, WITHIN_S, "the tokenizer is there"
            )
            with decoding(second, fleet, 4):
                answer, reason = said(fleet.url, text(1), is_stream=True)
                assert f"prefill={first.id}" in reason
                assert answer == said(first.url, text(1))[0]
                assert handovers(fleet) == {"ok": 1.0}
                fetched = httpx.get(f"{second.url}/metrics").text
                assert "pointsman_engine_kv_transfer_bytes_total" in fetched
                for seed in (2, 3):
                    assert said(fleet.url, text(seed))[0] == said(first.url, text(seed))[0]
                expected = said(first.url, text(4))[0]
                first.kill()
                assert said(fleet.url, text(4))[0] == expected, "the other one does both"
            wait_until(lambda: all(row["in_flight"] == 0 for row in fleet.replicas()), WITHIN_S, "nothing is left")
