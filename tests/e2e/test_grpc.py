"""gRPC on both sides with real processes: the bundled engine behind `grpc://`, asked over HTTP by OpenAI's SDK, and
over gRPC by the example clients. The TypeScript one is skipped, with the reason, where npm can install nothing."""

import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest

from loadtest.peers.process import free_ports
from tests.e2e.engines import EngineProcess, engine_processes
from tests.e2e.fleet import BIN, MODEL, ROOT, Fleet, get_json, running, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

EXAMPLES = ROOT / "deploy" / "examples" / "grpc"
INSTALL = ["install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"]
QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."


@dataclass(frozen=True, slots=True)
class House:
    """A router and its only engine, `engine_grpc` is where that is spoken to."""

    router: Fleet
    engine: EngineProcess
    engine_grpc: str

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.router.url}/v1", api_key="unused", max_retries=0)


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    [port] = free_ports(1)
    with engine_processes([f"--grpc-port={port}"]) as [engine]:
        command = [str(BIN / "pointsman"), "serve", "--replica", f"grpc://127.0.0.1:{port},kv=auto"]
        with running(command, until="serving") as router:
            wait_until(lambda: bool(get_json(f"{router.url}/v1/models")["data"]), 60.0, "a model is listed")
            yield House(router, engine, f"127.0.0.1:{port}")


def test_the_sdk_gets_the_same_answer_over_grpc_as_from_the_engine_itself(house: House) -> None:
    with house.client() as client, openai.OpenAI(base_url=f"{house.engine.url}/v1", api_key="unused") as direct:
        for asked in (client, direct):
            whole = asked.chat.completions.create(
                model=MODEL, temperature=0, messages=[{"role": "user", "content": QUESTION}], stop=["!"]
            )
            assert whole.choices[0].message.content == ANSWER
            assert whole.choices[0].finish_reason == "stop"
            assert whole.usage is not None
            assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (37, 8)


def test_the_sdk_streams_over_grpc(house: House) -> None:
    with house.client() as client:
        stream = client.chat.completions.create(
            model=MODEL,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            messages=[{"role": "user", "content": QUESTION}],
        )
        chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == ANSWER
    assert chunks[-1].usage is not None
    details = chunks[-1].usage.prompt_tokens_details
    assert details is not None
    assert details.cached_tokens == 32, "the engine had it from the request before: the router's ids are its own"


def test_choices_and_prompts_are_told_apart(house: House) -> None:
    with house.client() as client:
        answer = client.completions.create(model=MODEL, prompt=["One two", "Red"], n=2, seed=1, max_tokens=3)
        same = client.completions.create(model=MODEL, prompt="One two", n=2, seed=1, max_tokens=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in answer.choices[:2]] == [choice.text for choice in same.choices]


def test_vectors_come_over_grpc(house: House) -> None:
    with house.client() as client, openai.OpenAI(base_url=f"{house.engine.url}/v1", api_key="unused") as direct:
        found = [asked.embeddings.create(model=MODEL, input=["a", "b"]).data for asked in (client, direct)]
    assert [each.index for each in found[0]] == [0, 1]
    for ours, theirs in zip(*found, strict=True):
        assert ours.embedding == pytest.approx(theirs.embedding, abs=1e-5)


def test_a_refusal_names_the_field(house: House) -> None:
    with house.client() as client:
        for name, value in (("logprobs", True), ("temperature", -1), ("max_tokens", 10**6)):
            with pytest.raises(openai.BadRequestError) as caught:
                client.chat.completions.create(  # type: ignore[call-overload]
                    model=MODEL, messages=[{"role": "user", "content": "hi"}], **{name: value}
                )
            assert caught.value.param == ("messages" if name == "max_tokens" else name)


def test_what_the_router_knows_of_the_replica_came_over_grpc(house: House) -> None:
    [row] = house.router.replicas()
    assert (row["id"], row["state"]) == (house.engine_grpc, "ready")
    wait_until(
        lambda: get_json(f"{house.router.url}/readyz")["knowledge"][house.engine_grpc].startswith("EXACT"),
        60.0,
        "its KV events are followed",
    )


def test_a_client_that_leaves_ends_the_engines_work(house: House) -> None:
    with house.client() as client:
        stream = client.chat.completions.create(
            model=MODEL, stream=True, max_tokens=1500, messages=[{"role": "user", "content": "Tell a long story."}],
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        next(iter(stream))
        stream.close()
    wait_until(lambda: all(not row["in_flight"] for row in house.router.replicas()), 30.0, "nothing is in flight")
    wait_until(lambda: _num_running(house.engine) == 0, 30.0, "the engine is idle")


def test_the_python_example_chats(house: House) -> None:
    printed = subprocess.run(
        [sys.executable, str(EXAMPLES / "client.py"), house.router.grpc_address, MODEL, QUESTION],
        capture_output=True,
        timeout=120,
        check=True,
        text=True,
    ).stdout
    assert f"models: {MODEL}" in printed
    assert ANSWER in printed
    assert "37 tokens in, 8 out" in printed
    assert f"answered by {house.engine_grpc}: policy=pointsman" in printed


def test_the_typescript_example_chats(house: House, tmp_path: Path) -> None:
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("Node.js and npm are not here")
    folder = shutil.copytree(EXAMPLES, tmp_path / "grpc")
    try:
        subprocess.run(
            [npm, *INSTALL], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=180, check=True
        )
    except subprocess.CalledProcessError as error:
        pytest.skip(f"npm can install nothing: {error.stderr.decode()[-300:]}")
    except subprocess.TimeoutExpired:
        pytest.skip("npm had installed nothing after 180 s")
    built = subprocess.run([npm, "run", "build"], cwd=folder, capture_output=True, timeout=120, text=True)
    assert built.returncode == 0, built.stdout
    done = subprocess.run(
        ["node", "client.js", str(ROOT / "proto"), house.router.grpc_address, MODEL, QUESTION],
        cwd=folder,
        env=os.environ,
        capture_output=True,
        timeout=120,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert f"models: {MODEL}" in done.stdout
    assert ANSWER in done.stdout
    assert "37 tokens in, 8 out" in done.stdout
    assert f"answered by {house.engine_grpc}: policy=pointsman" in done.stdout


def _num_running(engine: EngineProcess) -> int:
    with urllib.request.urlopen(f"{engine.url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    [line] = [line for line in lines if line.startswith("vllm:num_requests_running")]
    return int(float(line.split()[-1]))
