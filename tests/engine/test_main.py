"""The engine as a process, on the real model."""

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from typing import Any

import pytest

pytestmark = pytest.mark.slow

MODEL = "smollm2-135m-instruct"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
COMMAND = (sys.executable, "-m", "engine", "--model", MODEL, "--threads", "1", "--port")
ENDLESS = {"prompt": "Once", "stream": True, "ignore_eos": True, "max_tokens": 5000}


@dataclass(frozen=True)
class Replica:
    process: "subprocess.Popen[str]"
    port: int

    @contextmanager
    def ask(self, method: str, path: str, **body: Any) -> Iterator[HTTPResponse]:
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request(method, path, json.dumps({"model": MODEL, "temperature": 0} | body))
            with connection.getresponse() as response:
                yield response

    def chat(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        with self.ask("POST", "/v1/chat/completions", messages=messages) as response:
            answer: dict[str, Any] = json.load(response)
        return answer

    def metric(self, name: str) -> float:
        with self.ask("GET", "/metrics") as response:
            lines = response.read().decode().splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(name + "{"))


@contextmanager
def started(*flags: str, **options: Any) -> Iterator[Replica]:
    """Ready; killed afterwards if it has not ended by then."""
    pipe = subprocess.PIPE
    with subprocess.Popen([*COMMAND, "0", *flags], stdin=pipe, stderr=pipe, text=True, **options) as process:
        try:
            assert process.stderr is not None
            yield Replica(process, int(process.stderr.readline().rsplit(":", 1)[1]))
        finally:
            process.kill()


@pytest.fixture(scope="module")
def replica() -> Iterator[Replica]:
    with started() as replica:
        yield replica


def test_the_capital_of_france_is_streamed(replica: Replica) -> None:
    with replica.ask("POST", "/v1/chat/completions", messages=QUESTION, stream=True) as response:
        stream = response.read().decode()
    assert stream.endswith("data: [DONE]\n\n")
    chunks = [json.loads(event.removeprefix("data: ")) for event in stream.split("\n\n")[:-2]]
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)
    assert text == "The capital of France is Paris."
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_second_turn_finds_the_first_in_the_cache(replica: Replica) -> None:
    first = replica.chat(QUESTION)
    answer = first["choices"][0]["message"]
    second = replica.chat([*QUESTION, answer, {"role": "user", "content": "And of Italy?"}])
    assert "Rome" in second["choices"][0]["message"]["content"]
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= first["usage"]["prompt_tokens"] - 16


def test_a_client_that_hangs_up_in_the_stream_leaves_nothing_running(replica: Replica) -> None:
    with replica.ask("POST", "/v1/completions", **ENDLESS) as response:
        response.readline()
        assert replica.metric("vllm:num_requests_running") == 1
    assert_soon(lambda: replica.metric("vllm:num_requests_running") == 0)
    assert replica.metric("vllm:kv_cache_usage_perc") == 0


def assert_soon(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < deadline


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_a_request_under_way(number: signal.Signals) -> None:
    with started() as replica, replica.ask("POST", "/v1/completions", **ENDLESS) as response:
        response.readline()
        replica.process.send_signal(number)
        assert response.read().endswith(b'"param":null,"code":null}}\n\ndata: [DONE]\n\n')
        assert replica.process.wait(5) == 0


def test_it_ends_by_sigint_even_if_its_shell_ignored_that() -> None:
    with started(preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)) as replica:
        replica.process.send_signal(signal.SIGINT)
        assert replica.process.wait(5) == 0


def test_it_ends_with_whoever_holds_its_input() -> None:
    with started("--exit-with-parent") as replica:
        replica.process.communicate(timeout=5)
        assert replica.process.returncode == 0


def test_it_ends_with_whoever_holds_its_input_even_while_loading() -> None:
    loading = subprocess.run([*COMMAND, "0", "--exit-with-parent"], input=b"", capture_output=True, timeout=30)
    assert loading.returncode == 128 + signal.SIGTERM
    assert loading.stderr == b""


def test_a_taken_port_is_one_sentence_and_exit_code_1() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = subprocess.run([*COMMAND, str(port)], capture_output=True, text=True, timeout=30)
    assert refused.returncode == 1
    assert refused.stderr == f"pointsman engine: cannot listen on 127.0.0.1:{port}: Address already in use\n"
