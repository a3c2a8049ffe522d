"""The C programs together: mock.c answers as a replica would, load.c counts what it gets."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from loadtest.peers.ask import ask
from loadtest.peers.bodies import write_bodies
from loadtest.peers.install import compile_c
from loadtest.peers.point import ERRORS, Point, parse
from loadtest.peers.process import free_port, run, running, wait_until

pytestmark = pytest.mark.slow


@dataclass(frozen=True, slots=True)
class Built:
    mock: Path
    load: Path
    bodies: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    scratch = tmp_path_factory.mktemp("built")
    write_bodies(scratch / "bodies")
    return Built(compile_c("mock", scratch), compile_c("load", scratch), scratch / "bodies")


@pytest.fixture(scope="module")
def ports(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[int]]:
    log = tmp_path_factory.mktemp("mock") / "log"
    with running([str(built.mock), "3"], log, os.environ) as process:
        wait_until(lambda: None if log.read_text().endswith("\n") else "no ports yet", process, 30)
        yield [int(port) for port in log.read_text().split()]


def load(built: Built, port: int, kind: str, **arguments: object) -> Point:
    given = {"connections": 4, "seconds": 5, "requests": 40, **arguments}
    words = [f"{name}={value}" for name, value in given.items()]
    code, printed = run([str(built.load), f"port={port}", f"bodies={built.bodies / kind}", *words], 30)
    assert code == 0, printed
    return parse(printed, 0.0, 0.0)


@contextmanager
def collecting(status: int = 200) -> Iterator[tuple[int, list[bytes]]]:
    """A server that keeps the bodies it is sent, by its port; it speaks HTTP/1.0 and so closes every connection."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port, bodies
        finally:
            server.shutdown()
            thread.join()


def test_it_listens_on_as_many_ports_as_asked(ports: list[int]) -> None:
    assert len(set(ports)) == 3
    for port in ports:
        status, body = ask(port, "/v1/models")
        assert (status, json.loads(body)["data"][0]["id"]) == (200, "mock-model")


def test_it_answers_what_routers_ask_of_an_engine(ports: list[int]) -> None:
    assert ask(ports[0], "/health")[0] == 200
    assert b"\nvllm:num_requests_running{" in ask(ports[0], "/metrics")[1]
    assert ask(ports[0], "/pointsman/tokenizer")[0] == 404
    assert ask(ports[0], "/any/other?path=1") == (200, b"{}")
    assert ask(ports[0], "/v1/chat/completions/render", b"{}")[0] == 404


def test_it_answers_chats_whole_and_streamed(ports: list[int]) -> None:
    whole = json.loads(ask(ports[0], "/v1/chat/completions", b'{"model": "mock-model"}')[1])
    assert whole["usage"]["total_tokens"] == 110
    asked = b'{"stream": true, "max_tokens": 3, "seed": 1000}'
    events = ask(ports[0], "/v1/chat/completions", asked)[1].decode().split("\n\n")
    assert len(events) == 5
    assert events[3:] == ["data: [DONE]", ""]
    first = json.loads(events[0].removeprefix("data: "))
    assert len(first["choices"][0]["delta"]["content"]) == 17


def test_it_takes_a_body_in_chunks(ports: list[int]) -> None:
    headers = {"transfer-encoding": "chunked"}
    status, body = ask(ports[0], "/v1/chat/completions", b"2\r\n{}\r\n0\r\n\r\n", headers)
    assert (status, json.loads(body)["object"]) == (200, "chat.completion")


@pytest.mark.parametrize("kind", ["500b", "64k"])
def test_the_generator_counts_whole_answers(built: Built, ports: list[int], kind: str) -> None:
    point = load(built, ports[0], kind)
    assert (point.num_answers, point.num_events, point.errors) == (40, 0, {})
    assert point.total_p50_us is not None
    assert point.total_p50_us > 0


def test_the_generator_counts_events_and_their_times(built: Built, ports: list[int]) -> None:
    point = load(built, ports[0], "short-stream", done=1)
    assert (point.num_answers, point.num_events, point.errors) == (40, 40 * 9, {})
    assert point.first_event_p50_us is not None
    assert point.event_p50_us is not None
    assert point.total_p50_us is not None
    # Eight events two milliseconds apart; the clocks are one.
    assert point.first_event_p50_us < 14_000 <= point.total_p50_us


def test_a_stream_without_its_end_is_an_error(built: Built, ports: list[int]) -> None:
    assert load(built, ports[0], "500b", done=1).errors == {"undone": 40}


def test_bodies_come_as_they_are_in_turn(built: Built) -> None:
    with collecting() as (port, bodies):
        point = load(built, port, "500b", connections=1, requests=70)
    assert (point.num_answers, point.errors) == (70, {})
    assert bodies[0] == bodies[64] == (built.bodies / "500b" / "00.json").read_bytes()
    assert len(set(bodies)) == 64


@pytest.mark.parametrize("sixteenths", [1, 16])
def test_new_text_is_never_sent_twice_and_as_long_as_the_old(built: Built, sixteenths: int) -> None:
    with collecting() as (port, bodies):
        for seed in (1, 2):
            load(built, port, "8k", connections=1, requests=70, fresh=sixteenths, seed=seed)
    assert len(set(bodies)) == 140
    for number, body in enumerate(bodies):
        old = (built.bodies / "8k" / f"{number % 70 % 64:02d}.json").read_bytes()
        assert len(body) == len(old)
        old_chat, new_chat = (text_of(json.loads(one)) for one in (old, body))
        num_old = len(old_chat) * (16 - sixteenths) // 16
        assert new_chat[:num_old] == old_chat[:num_old] or sixteenths == 16
        assert new_chat[num_old + 20 :] != old_chat[num_old + 20 :]


def text_of(body: "dict[str, list[dict[str, str]]]") -> str:
    return "".join(message["content"] for message in body["messages"])


def test_statuses_are_counted(built: Built) -> None:
    with collecting(status=503) as (port, _):
        point = load(built, port, "500b", connections=2, requests=10)
    assert (point.errors, point.first_bad_status) == ({"bad_status": 10}, 503)


def test_nobody_there_is_counted(built: Built) -> None:
    point = load(built, free_port(), "500b")
    assert (point.num_answers, point.errors) == (0, {"refused": 4})


def test_every_error_has_a_name_in_the_line(built: Built, ports: list[int]) -> None:
    _, printed = run([str(built.load), f"port={ports[0]}", f"bodies={built.bodies / '500b'}", "seconds=0.1"], 30)
    assert set(ERRORS) < json.loads(printed).keys()


@pytest.mark.parametrize("words", [["nosense"], ["colour=red"], ["bodies=/nosuch"]])
def test_a_wrong_argument_is_told(built: Built, words: list[str]) -> None:
    code, printed = run([str(built.load), *words], 30)
    assert code == 2
    assert printed.startswith("load: ")
